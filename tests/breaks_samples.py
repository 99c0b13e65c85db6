"""Scripts with graph breaks, for the tests of `sleuth breaks`; and surveys that are made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from torchsleuth.frontend.breaks import Place
from torchsleuth.frontend.scripts import Ended, Script
from torchsleuth.frontend.second_opinion import Objection, Opinion
from torchsleuth.frontend.surveying import Finding, Survey, Surveyed

SEVERAL: Final = '''"""A step that a compiler cannot keep in one graph."""

import sys

import numpy as np
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 16)
        self.calls = 0

    def forward(self, x):
        hidden = torch.relu(self.first(x))
        self.calls += 1
        if hidden.mean() > -1:
            hidden = hidden / hidden.std()
        return hidden


model = Net()


def report(loss):
    print("loss", loss.item())
    return loss


def step(x, target):
    out = model(x)
    weights = np.linspace(0.0, 1.0, 4)
    loss = ((out - target) ** 2).sum() * len(weights)
    report(loss)
    return loss * 2


for size in map(int, sys.argv[1:] or "448"):
    step(torch.randn(size, 8), torch.randn(size, 16))
'''
"""Breaks at a branch, at numpy, at `item` and at `print`; a counter, and sizes that change."""

WHOLE: Final = """
import torch
def step(x):
    return torch.relu(x) + 1
for _ in range(3):
    step(torch.ones(3))
"""
"""One graph."""


def lines_of(text: str, *parts: str) -> list[int]:
    """The numbers of the lines in which these words occur."""
    lines = text.splitlines()
    return [next(number for number, line in enumerate(lines, 1) if part in line) for part in parts]


def finding(place: Place, reason: str = "why", **more: Any) -> Finding:
    given: dict[str, Any] = {
        "number": 1, "reason": reason, "advice": "what to change", "natively": False, "place": place, "home": place,
        "stack": (place,), **more,
    }  # fmt: skip
    return Finding(**given)


def surveyed(**more: Any) -> Surveyed:
    """What is known of a function that was called once and is one graph."""
    given: dict[str, Any] = {
        "name": "step", "calls": 1, "looked_at": 1, "objects": 0, "graphs": (3,), "all_graphs": 1, "hits": 0,
        "recordings": 1, "natives": 0, "findings": (), "misses": (), "uncacheable": {}, "failures": (),
        "opinion": None, "dynamo_alone": (), **more,
    }  # fmt: skip
    return Surveyed(**given)


def survey(*functions: Surveyed, ended: Ended | None = None, stopped: bool = False) -> Survey:
    return Survey(Script("script.py"), ended or Ended(1), stopped, functions)


def opinion(*objections: Objection, graphs: tuple[int, ...] = (3,)) -> Opinion:
    return Opinion(graphs, objections)


def written(folder: Path, text: str, name: str = "script.py") -> str:
    """The script's path."""
    path = folder / name
    path.write_text(text)
    return str(path)
