"""What a program sees of its own errors and frames while it is captured: the same as without us."""

from __future__ import annotations

import builtins
import contextlib
import inspect
import io
import sys
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchsleuth.frontend import capture

CALLS = 3


def inner(x: torch.Tensor, n: int) -> torch.Tensor:
    if n > 0:
        raise ValueError("n is too large")
    return x + 1


def middle(x: torch.Tensor, n: int) -> torch.Tensor:
    with torch.no_grad():
        return inner(
            x,
            n,
        )


def told(x: torch.Tensor, n: int) -> Any:
    x = x * 2
    try:
        middle(x, n)
    except ValueError:
        print(traceback.format_exc())
    return x + 1


def walked(x: torch.Tensor, n: int) -> Any:
    names = []
    try:
        middle(x, n)
    except ValueError as error:
        trace = error.__traceback__
        while trace is not None:
            names.append((trace.tb_frame.f_code.co_name, trace.tb_lineno))
            trace = trace.tb_next
    return x + 1, names


def kept(x: torch.Tensor, n: int) -> Any:
    errors = []
    for number in range(3):
        try:
            x = x + number
            inner(x, number)
        except ValueError as error:
            errors.append(error)
    return x, ["".join(traceback.format_exception(each)) for each in errors]


def chained(x: torch.Tensor, n: int) -> Any:
    try:
        middle(x, n)
    except ValueError as error:
        raise RuntimeError("chained") from error


def in_context(x: torch.Tensor, n: int) -> Any:
    try:
        middle(x, n)
    except ValueError:
        return x @ torch.ones(7, 7)


def raised_again(x: torch.Tensor, n: int) -> Any:
    try:
        middle(x, n)
    except ValueError:
        print("behind a break")
        x = x + 1
        raise


def nothing_to_raise(x: torch.Tensor, n: int) -> Any:
    x = x + 1
    raise


def of_an_operator(x: torch.Tensor, n: int) -> Any:
    print("behind a break")
    return torch.cat(
        [x, torch.ones(3, 4)],
    )


def in_a_finally(x: torch.Tensor, n: int) -> Any:
    try:
        return middle(x, n)
    finally:
        print(sys.exc_info()[0], x.sum().item())


def of_a_generator(x: torch.Tensor, n: int) -> Any:
    def generator() -> Any:
        yield x
        inner(x, n)

    for each in generator():
        x = x + each
    return x


def of_a_group(x: torch.Tensor, n: int) -> Any:
    group = getattr(builtins, "ExceptionGroup")  # noqa: B009 - not in Python 3.10
    try:
        raise group("several", [ValueError(1), TypeError(2)])
    except group:
        x = x + 1
        return x, traceback.format_exc()


def what_is_handled(x: torch.Tensor, n: int) -> Any:
    def about() -> str:
        return repr(sys.exc_info()[1])

    seen = [about()]
    try:
        inner(x, n)
    except ValueError:
        seen += [about(), repr(sys.exc_info()[1])]
        print("behind a break", *seen)
        x = x + 1
        seen.append(about())
    return x, seen, about()


def what_a_break_handles(x: torch.Tensor, n: int) -> Any:
    try:
        inner(x, n)
    except ValueError:
        traceback.print_exc(file=sys.stdout)
        x = x + 1
        traceback.print_exc(file=sys.stdout)
    return x * 2


def evaluated(x: torch.Tensor, n: int) -> Any:
    y = x * 2
    k = eval("n + y.numel()")  # noqa: S307
    return y + k


def evaluated_in(x: torch.Tensor, n: int) -> Any:
    y = x * 2
    k = eval("n + 3", {"n": n})  # noqa: S307
    return y + k


def evaluated_by_another_name(x: torch.Tensor, n: int) -> Any:
    y = x * 2
    k = by_another_name("n + y.numel()")
    return y + k


by_another_name = eval


def own_locals(x: torch.Tensor, n: int) -> Any:
    y = x + 1
    print("behind a break")
    return y, sorted(locals())


def own_frame(x: torch.Tensor, n: int) -> Any:
    y = x + 1
    print("behind a break")
    frame = inspect.currentframe()
    assert frame is not None
    return y, frame.f_code.co_name, frame.f_lineno, sorted(frame.f_locals)


def seen(function: Callable[..., Any], n: int) -> tuple[str, str]:
    """What a call prints, and its result or its traceback."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            result = str(function(torch.ones(2), n))
        except Exception:  # noqa: BLE001 - whatever it is: both must show the same
            result = traceback.format_exc()
    return printed.getvalue(), result


@pytest.mark.parametrize(
    "function",
    [
        told, walked, kept, chained, in_context, raised_again, nothing_to_raise, of_an_operator, in_a_finally,
        of_a_generator, of_a_group, what_is_handled, what_a_break_handles, evaluated, evaluated_in,
        evaluated_by_another_name, own_locals, own_frame,
    ],
    ids=lambda function: function.__name__,
)  # fmt: skip
def test_errors_and_frames_look_as_in_eager(function: Callable[..., Any]) -> None:
    """Tracebacks to the column, the exception that is handled, names and values of locals; recorded and cached.

    Covers: F3, F5
    """
    fast = capture(function)
    for n in [1] * CALLS + [0]:
        assert seen(fast, n) == seen(function, n)


def test_the_layers_of_a_module_that_only_call_the_next_are_the_only_ones_left_out() -> None:
    """Covers: F5"""
    model = torch.nn.Sequential(torch.nn.Linear(3, 3))

    def fn(x: torch.Tensor) -> Any:
        return model(x)

    def lines(function: Callable[..., Any]) -> list[tuple[str, int | None]]:
        with pytest.raises(RuntimeError) as caught:
            function(torch.ones(2))
        return [
            (each.name, each.lineno)
            for each in traceback.extract_tb(caught.value.__traceback__)[1:]
            if each.name not in ("_wrapped_call_impl", "_call_impl")
        ]

    fast = capture(fn)
    for _ in range(CALLS):
        assert lines(fast) == lines(fn)


def test_an_error_holds_no_values_of_the_call_it_was_recorded_in() -> None:
    """Covers: F5"""
    import gc
    import weakref

    errors: list[BaseException] = []

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        try:
            inner(y, 1)
        except ValueError as error:
            errors.append(error)
        return y + 1

    fast = capture(fn)
    first = torch.ones(2)
    gone = weakref.ref(first)
    fast(first)
    errors.clear()
    del first
    gc.collect()
    assert gone() is None
    fast(torch.ones(2))
    assert fast.hits == 1
    assert [each.name for each in traceback.extract_tb(errors[0].__traceback__)] == ["fn", "inner"]
