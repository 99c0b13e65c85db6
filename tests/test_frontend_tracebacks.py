"""What a program sees of its own errors and frames while it is captured: the same as without us."""

from __future__ import annotations

import builtins
import contextlib
import gc
import inspect
import io
import logging
import sys
import traceback
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchsleuth.frontend import capture

pytestmark = pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="the front end reads the bytecode of Python 3.11"
)

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


@contextlib.contextmanager
def scaled(n: int) -> Any:
    yield n


def of_a_with(x: torch.Tensor, n: int) -> Any:
    """Its end, where the exception goes on, stands in no line."""
    with scaled(n):
        return torch.add(x, x, alpha=n > 0)


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


class Base:
    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * 3


class Derived(Base):
    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        def me() -> Any:
            return self

        return super().scaled(x) if me() is self else x

    def without_itself(self, x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        del self
        return super().scaled(x)

    @staticmethod
    def of_nobody(*args: torch.Tensor) -> torch.Tensor:
        return super().scaled(*args)

    def of_another_class(self, x: torch.Tensor) -> torch.Tensor:
        return super().scaled(x + 1)


def inherited(x: torch.Tensor, n: int) -> Any:
    return Derived().scaled(x)


def inherited_by_nobody(x: torch.Tensor, n: int) -> Any:
    x = x + 1
    try:
        return Derived().without_itself(x)
    except RuntimeError as error:
        print(error)
    return Derived.of_nobody(x)


def inherited_by_no_class(x: torch.Tensor, n: int) -> Any:
    (cell,) = Derived.of_another_class.__closure__ or ()
    cell.cell_contents = None
    try:
        return Derived().of_another_class(x)
    finally:
        cell.cell_contents = Derived


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


# ---- who called --------------------------------------------------------------------------------------------


def warns_of_its_caller(x: torch.Tensor) -> torch.Tensor:
    warnings.warn("careful", stacklevel=2)
    print("behind a break")
    return x + 1


def knows_its_caller(x: torch.Tensor) -> Any:
    y = x * 2
    frame = sys._getframe(1)
    return y + 1, frame.f_code.co_name, frame.f_lineno


def yields_its_caller(x: torch.Tensor) -> Any:
    yield x
    print("behind a break")
    yield x + 1, sys._getframe(1).f_lineno


def calls_who_warns(x: torch.Tensor) -> Any:
    x = x + 1
    y = warns_of_its_caller(x)
    return y * 2


def calls_who_knows(x: torch.Tensor) -> Any:
    x = x + 1
    y = knows_its_caller(x)
    z = knows_its_caller(x * 2)
    return y, z


def calls_who_yields(x: torch.Tensor) -> Any:
    found = []
    for each in yields_its_caller(x):
        found.append(each)
    return found


def logs(x: torch.Tensor) -> Any:
    x = x + 1
    logging.getLogger(__name__).warning("the sum is %s", x.sum())
    return x


@pytest.mark.parametrize(
    "function",
    [calls_who_warns, calls_who_knows, calls_who_yields, logs],
    ids=lambda function: function.__name__,
)
def test_who_looks_at_who_called_finds_the_users_functions(
    function: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Warnings, loggers, and whoever looks at the frame before its own.

    Covers: F4, F5
    """

    def observed(called: Callable[..., Any]) -> Any:
        caplog.clear()
        with warnings.catch_warnings(record=True) as warned, contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("always")
            result = str(called(torch.ones(2)))
        logged = [(each.funcName, each.lineno, each.getMessage()) for each in caplog.records]
        return result, [(each.filename, each.lineno) for each in warned], logged

    fast = capture(function)
    for _ in range(CALLS):
        assert observed(fast) == observed(function)


class Keywords:
    """A mapping that is no dict."""

    def __init__(self, *names: Any) -> None:
        self.names = names

    def keys(self) -> Any:
        print("keys")
        return self.names

    def __getitem__(self, name: str) -> float:
        print("item")
        return 1.0


def shown(keywords: Any) -> str:
    return str(getattr(keywords, "names", keywords))


def merged(x: torch.Tensor, keywords: Any) -> Any:
    return takes_any(**{"a": x + 1}, **keywords)  # noqa: PIE804 - two are merged


def takes_any(**held: Any) -> Any:
    return held


@pytest.mark.parametrize(
    "keywords", [{"b": 1}, {"a": 1}, {3: 1}, Keywords("b", "c"), Keywords("b", "a"), Keywords(3), 5], ids=shown
)
def test_keywords_are_merged_as_by_a_call(keywords: Any) -> None:
    """Covers: F2, F5"""

    def observed(called: Callable[..., Any]) -> Any:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            try:
                result = str(called(torch.ones(2), keywords))
            except TypeError as error:
                result = str(error)
        return printed.getvalue(), result

    fast = capture(merged)
    for _ in range(CALLS):
        assert observed(fast) == observed(merged)


# ---- errors and frames -------------------------------------------------------------------------------------


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
        of_a_generator, of_a_with, of_a_group, what_is_handled, what_a_break_handles, evaluated, evaluated_in,
        evaluated_by_another_name, inherited, inherited_by_nobody, inherited_by_no_class, own_locals, own_frame,
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
