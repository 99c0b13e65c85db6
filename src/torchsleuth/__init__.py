"""torchsleuth: find out what torch.compile did to your program."""

from __future__ import annotations

__version__ = "0.1.0"
