"""`same`: do two results agree? `compare_pairs`: the same of pairs that are brought together elsewhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import torch
from typing_extensions import Unpack

from .comparison import EXACT, Comparison, Tolerance, ToleranceOptions, raw
from .leaves import closer, compare_leaves
from .tree import ABSENT, Leaves, Misfit, walk


def same(
    ref: Any,
    res: Any,
    fp64_ref: Any = None,
    *,
    tolerance: Tolerance | None = None,
    **options: Unpack[ToleranceOptions],
) -> Comparison:
    """Compare two results, leaf by leaf, and stop at the first that differs.

    `ref` is what is expected (eager's result), `res` what was got, `fp64_ref` the same computed in double
    precision, where there is such a thing. Options are the fields of `Tolerance`.

        same(eager, compiled)
        same(eager, compiled, exact, tol=1e-3, ignore_non_fp=True)

    The arguments are not changed, no random numbers are drawn, and no more memory is used than a few
    buffers of fixed size, however large the tensors are.
    """
    tolerance = (tolerance or Tolerance()).replace(**options)
    return compare_pairs(walk(ref, res, ABSENT if fp64_ref is None else fp64_ref), tolerance)


def compare_pairs(pairs: Iterable[Leaves | Misfit], tolerance: Tolerance) -> Comparison:
    """What the first pair that differs shows, or the one that came closest to it."""
    closest = Comparison(True, tolerance=tolerance)
    leaves = ignored = 0
    with torch.no_grad():
        for pair in pairs:
            if isinstance(pair, Misfit):
                return Comparison(
                    False,
                    pair.path,
                    pair.symptom,
                    ref=raw(pair.ref),
                    res=raw(pair.res),
                    message=pair.message,
                    rule=EXACT,
                    leaves=leaves,
                    ignored=ignored,
                    tolerance=tolerance,
                )
            found = compare_leaves(pair, tolerance)
            if found is None:
                ignored += 1
                continue
            leaves += 1
            if not found.agree:
                return dataclasses.replace(found, leaves=leaves, ignored=ignored)
            closest = found if leaves == 1 else closer(closest, found)
    return dataclasses.replace(closest, leaves=leaves, ignored=ignored)
