"""A failure from an exception."""

from __future__ import annotations

import pytest

from torchsleuth.case.failures import chain, is_aside, raised
from torchsleuth.case.normalising import normalised
from torchsleuth.outcome import Stage


def caught(raise_it: object) -> BaseException:
    with pytest.raises(RuntimeError) as found:
        raise_it()  # type: ignore[operator]
    return found.value


def wrapped() -> None:
    try:
        raise IndexError("tuple index 3 out of range at 0x7f00beef\nand more")
    except IndexError as error:
        raise RuntimeError("while compiling /home/me/model.py") from error


def test_an_exception_is_a_failure_with_its_chain_message_and_traceback() -> None:
    """Covers: S6"""
    failure = raised(caught(wrapped), Stage.LOWERING)
    assert failure.signature.kind == "raised"
    assert failure.signature.stage is Stage.LOWERING
    assert failure.signature.types == ("builtins.RuntimeError", "builtins.IndexError")
    assert failure.signature.message == "tuple index … out of range at …"
    assert failure.message == "while compiling /home/me/model.py"
    assert "in wrapped" in failure.traceback
    assert "tuple index 3" in failure.traceback


def test_what_varies_from_run_to_run_is_not_part_of_a_signature() -> None:
    one, other = "size 12 at 0x7f01 in /tmp/a/b.py:3\nx", "\n size 7 at 0xdead in /tmp/c/b.py:44"
    assert normalised(one) == normalised(other) == "size … at … in …"
    assert normalised("") == ""
    assert len(normalised("word " * 10_000)) <= 500


def test_a_chain_ends_where_it_was_cut_or_where_it_bites_its_tail() -> None:
    error = caught(wrapped)
    assert error.__cause__ is not None
    error.__cause__.__cause__ = error
    assert len(list(chain(error))) == 2

    def cut() -> None:
        try:
            raise IndexError
        except IndexError:
            raise RuntimeError("plain") from None

    assert [type(one) for one in chain(caught(cut))] == [RuntimeError]


class Wrapper(RuntimeError):
    """As torch's InductorError: keeps the real one, and is raised `from None`."""

    def __init__(self, inner_exception: object) -> None:
        super().__init__("wrapped")
        self.inner_exception = inner_exception


def test_an_exception_that_keeps_the_real_one_leads_to_it() -> None:
    """Covers: S6"""

    def keep() -> None:
        try:
            raise IndexError("the real one") from KeyError("its cause")
        except IndexError as error:
            raise Wrapper(error) from None

    assert [type(one) for one in chain(caught(keep))] == [Wrapper, IndexError, KeyError]
    assert raised(caught(keep)).signature.types[1:] == ("builtins.IndexError", "builtins.KeyError")
    assert [type(one) for one in chain(Wrapper("no exception"))] == [Wrapper]


def test_what_was_merely_being_handled_is_aside() -> None:
    def handle() -> None:
        try:
            raise IndexError
        except IndexError:
            raise RuntimeError("another matter")  # noqa: B904 - that is the point

    error = caught(handle)
    assert error.__context__ is not None
    assert is_aside(error.__context__, error)
    error = caught(wrapped)
    assert error.__cause__ is not None
    assert not is_aside(error.__cause__, error)


def test_a_message_with_characters_that_no_file_can_hold_is_spelled_out() -> None:
    """Covers: U17"""
    failure = raised(RuntimeError("lone \ud800"))
    assert failure.message == "lone \\ud800"
