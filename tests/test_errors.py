"""The errors: the tree in the docstring is the tree of the classes, and each error says cause and remedy."""

from __future__ import annotations

import copy
import inspect
import pickle
import re

import pytest
from hypothesis import given, strategies as st

from torchsleuth import errors
from torchsleuth.errors import SleuthError

CLASSES = [
    each
    for each in vars(errors).values()
    if inspect.isclass(each) and issubclass(each, BaseException) and each.__module__ == errors.__name__
]


def drawn_tree() -> list[tuple[str, str | None, str | None]]:
    """(class, its parent, the builtin it also is) for each line of the tree in the docstring."""
    found: list[tuple[str, str | None, str | None]] = []
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^(?P<lead>    [│ ]*(?:[├└]── )?)(?P<name>[A-Z]\w+)\b(?P<rest>.*)$", line)
        if match is None:
            continue
        indent = len(match["lead"])
        above = [each for each in above if each[0] < indent]
        also = re.search(r"\(also a (\w+)\)", match["rest"])
        found.append((match["name"], above[-1][1] if above else None, also[1] if also else None))
        above.append((indent, match["name"]))
    return found


def real_tree() -> list[tuple[str, str | None, str | None]]:
    found: list[tuple[str, str | None, str | None]] = []
    for each in CLASSES:
        ours = [base.__name__ for base in each.__bases__ if issubclass(base, SleuthError)]
        others = [base.__name__ for base in each.__bases__ if not issubclass(base, SleuthError)]
        if each is SleuthError:
            assert others == ["Exception"]
            others = []
        assert len(ours) <= 1
        assert len(others) <= 1
        found.append((each.__name__, ours[0] if ours else None, others[0] if others else None))
    return found


def test_the_drawn_tree_is_the_real_one() -> None:
    assert sorted(drawn_tree(), key=str) == sorted(real_tree(), key=str)


def test_the_drawing_is_read_at_all() -> None:
    """So that an empty drawing and an unreadable one cannot pass as right."""
    assert drawn_tree()[0] == ("SleuthError", None, None)
    assert ("BadValue", "ConfigError", None) in drawn_tree()
    assert ("ConfigError", "SleuthError", "ValueError") in drawn_tree()


@pytest.mark.parametrize("kind", CLASSES)
def test_each_error_has_a_docstring_of_its_own(kind: type[SleuthError]) -> None:
    assert kind.__dict__.get("__doc__")


@pytest.mark.parametrize("kind", CLASSES)
def test_each_error_says_what_why_and_what_to_do(kind: type[SleuthError]) -> None:
    error = kind("it broke", cause="a stone", remedy="use less force")
    assert str(error) == "it broke\n  cause: a stone\n  remedy: use less force"
    assert error.args == ("it broke",)


@pytest.mark.parametrize("kind", CLASSES)
def test_cause_and_remedy_cannot_be_left_out(kind: type[SleuthError]) -> None:
    for incomplete in ({}, {"cause": "a stone"}, {"remedy": "use less force"}):
        with pytest.raises(TypeError):
            kind("it broke", **incomplete)


@pytest.mark.parametrize("kind", CLASSES)
@given(what=st.text(), cause=st.text(), remedy=st.text())
def test_an_error_survives_pickling_and_copying(kind: type[SleuthError], what: str, cause: str, remedy: str) -> None:
    error = kind(what, cause=cause, remedy=remedy)
    for back in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):  # noqa: S301
        assert type(back) is kind
        assert (back.what, back.cause, back.remedy, back.args) == (what, cause, remedy, error.args)
        assert str(back) == str(error)
