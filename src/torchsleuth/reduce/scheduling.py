"""Trying what a pass proposes: which patches, in which order, how many at a time, and which of them together.

All sites of a pass are tried at once first, each with its best patch: often nothing of what is proposed matters. If
that does not do, each site is tried by itself, all against the same case, so that as many can be asked at the same time
as there are workers; what holds by itself is then put together, all of it, or else as much from the front as holds.

Nothing of this depends on how many workers there are, or on who is quick: the same answers give the same case.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final, Literal, TypeAlias

from torchsleuth.case.schema import Case
from torchsleuth.reduce.patches import Material, Pass, Patch, Site, combined
from torchsleuth.reduce.problem import Problem
from torchsleuth.reduce.searching import find_integer

_WINDOW: Final = 8
"""So many sites are tried against the same case before what holds is put together."""


_MOST_AT_ONCE: Final = 32
"""Of more sites, some are sure to matter."""


Way: TypeAlias = Literal["each", "halves", "together"]
"""How sites are tried: all at once and then each; where most of them will do, all at once and then by halves; or only
all at once."""


def run_pass(problem: Problem, proposes: Pass, material: Material, way: Way = "each") -> bool:
    """Try what a pass proposes for the best case. True: there is a better one now."""
    before = problem.best
    sites = [tuple(site) for site in proposes(problem.best, material)]
    sites = [site for site in sites if site]
    if way == "together" or problem.at_edge:  # at the edge, what each by itself does would not be seen
        return bool(sites) and _all_at_once(problem, sites)
    if way == "halves":
        _try_halves(problem, sites)
        return problem.best is not before
    if 1 < len(sites) <= _MOST_AT_ONCE and _all_at_once(problem, sites):
        return True
    rest = iter(sites)
    while window := list(islice(rest, _WINDOW)):
        _try_window(problem, window)
    return problem.best is not before


def _all_at_once(problem: Problem, sites: Sequence[Site]) -> bool:
    return problem.holds(*_applied(combined([site[0] for site in sites]), problem.best))


def _applied(patch: Patch, case: Case) -> tuple[Case | None, str]:
    return patch(case), patch.words


def _try_halves(problem: Problem, sites: Sequence[Site]) -> None:
    if len(sites) == 1:
        _try_one(problem, sites[0])
    elif sites and not _all_at_once(problem, sites):
        middle = len(sites) // 2
        _try_halves(problem, sites[:middle])
        _try_halves(problem, sites[middle:])


def _try_window(problem: Problem, window: Sequence[Site]) -> None:
    """Find for each site the first patch that holds, and put them together."""
    if len(window) == 1:
        _try_one(problem, window[0])
        return
    chosen: list[Patch | None] = [None] * len(window)
    for level in range(max(map(len, window))):
        tried = [at for at, site in enumerate(window) if chosen[at] is None and level < len(site)]
        patches = [window[at][level] for at in tried]
        cases = [_checked(problem, patch) for patch in patches]
        held = problem.each(cases, [patch.words for patch in patches])
        for at, patch, holds in zip(tried, patches, held, strict=True):
            chosen[at] = patch if holds else None
    found = [patch for patch in chosen if patch is not None]
    if found:
        _put_together(problem, found)


def _checked(problem: Problem, patch: Patch) -> Case | None:
    """What the patch makes of the best case. Making it takes time, too."""
    problem.check_budget()
    return patch(problem.best)


def _try_one(problem: Problem, site: Site) -> None:
    problem.ahead(patch(problem.best) for patch in site)
    for patch in site:
        if problem.holds(*_applied(patch, problem.best)):
            return


def _put_together(problem: Problem, patches: Sequence[Patch]) -> None:
    """All of them if that holds, or else as many from the front as hold together; then each of the rest."""
    base = problem.best

    def together(count: int) -> bool:
        if count > len(patches):
            return False
        case = combined(patches[:count])(base)
        return case is problem.best or problem.holds(case, f"{count} at once") if count > 1 else True

    first = patches[0]
    if len(patches) == 1:
        problem.holds(first(base), first.words)
        return
    if together(len(patches)):
        return
    problem.holds(first(base), first.words)
    count = max(find_integer(together), 1)
    for patch in patches[count + 1 :]:
        problem.holds(*_applied(patch, problem.best))
