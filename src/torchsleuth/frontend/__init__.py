"""Our own graph capture: `capture` records what a function does, instruction by instruction. See TOUR.md."""

from torchsleuth.frontend.breaks import GraphBreak as GraphBreak
from torchsleuth.frontend.capturing import Captured as Captured, capture as capture
