"""What a check comes to: a finding, or nothing but noise."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from torchsleuth.compare import Comparison, Judgement, LeafEvidence, Results, Tolerance, Verdict
from torchsleuth.compare.leaves import compare_leaves
from torchsleuth.compare.tree import Misfit, walk
from torchsleuth.compare.weighing import AGREES
from torchsleuth.outcome import AT, Symptom


@dataclass(frozen=True)
class Finding:
    """That the two sides differ, and not by noise: how, where, and in words."""

    symptom: Symptom
    path: str
    """In the results: `output[0]`, `inputs[3]` (written to), `input_grads[1]`, `grads['weight']`."""
    words: str
    also: tuple[str, ...] = ()
    """How and where else, as `Mismatched` has it."""


def weighed(judgement: Judgement, expected: Results, got: Results, found: Comparison) -> Finding | None:
    """The finding, after a judgement; None if noise is all there is.

    A leaf counts if it is out of tolerance (a bug in what the user lets pass is none), or random: then the values
    of one run prove nothing either way.
    """
    differing, agreeing, ignored = _sorted_leaves(expected, got, found)
    wrong = [
        leaf
        for leaf in judgement.leaves
        if leaf.verdict in (Verdict.BUG, Verdict.UNKNOWN)
        and (leaf.path not in agreeing or leaf.distribution is not None)
        and leaf.path not in ignored
    ]
    if wrong:
        first, *rest = (_from_leaf(judgement, leaf, found) for leaf in wrong)
        return replace(first, also=_of_other_sorts(first, rest))
    if not judgement.leaves:  # one side raised when it was run again
        plain = by_tolerance(found)
        return replace(plain, words=f"{judgement}\n{plain.words}")
    drew = judgement.rng.eager_drew or judgement.rng.compiled_drew
    if judgement.verdict is Verdict.NOISE and not drew:
        equal = {leaf.path for leaf in judgement.leaves if leaf.reason == AGREES}
        for path, symptom in differing.items():
            if path in equal:
                said = "On copies of the inputs both sides agree bit for bit, so it depends on the memory they are in, "
                return Finding(symptom, path, f"{found}\n{said}or does not happen each time.")
    return None


def by_tolerance(found: Comparison) -> Finding:
    return Finding(found.symptom or Symptom.VALUE, found.path.removeprefix("."), str(found))


def _from_leaf(judgement: Judgement, leaf: LeafEvidence, found: Comparison) -> Finding:
    words = str(judgement) if leaf is judgement.leaf else f"{leaf.verdict.value.upper()}: at {leaf.path}, {leaf.reason}"
    return Finding(leaf.symptom or found.symptom or Symptom.VALUE, leaf.path, words)


def _of_other_sorts(first: Finding, rest: Iterable[Finding]) -> tuple[str, ...]:
    """The first of each sort: a symptom, and a part of the results."""
    sorts = {(first.symptom, _part(first.path)): ""}
    for one in rest:
        sorts.setdefault((one.symptom, _part(one.path)), f"{one.symptom}{AT}{one.path}")
    return tuple(filter(None, sorts.values()))


def _part(path: str) -> str:
    return re.split(r"[\[.]", path, maxsplit=1)[0]


def _sorted_leaves(expected: Results, got: Results, found: Comparison) -> tuple[dict[str, Symptom], set[str], set[str]]:
    """The paths that are out of tolerance (with how), within it, and not to be compared."""
    differing: dict[str, Symptom] = {}
    agreeing: set[str] = set()
    ignored: set[str] = set()
    with torch.no_grad():
        for pair in walk(expected, got):
            path = pair.path.removeprefix(".")
            if isinstance(pair, Misfit):
                differing[path] = pair.symptom
                continue
            compared = compare_leaves(pair, found.tolerance or Tolerance())
            if compared is None:
                ignored.add(path)
            elif compared:
                agreeing.add(path)
            else:
                differing[path] = compared.symptom or Symptom.VALUE
    return differing, agreeing, ignored
