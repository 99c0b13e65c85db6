"""`capture(..., verify=True)`: every call is held against eager.

    result = checked(captured, args, kwargs)

The original runs first, on the very objects of the call, with random numbers and modes of torch as they are. What it
returned or raised is noted, and everything in reach that it has changed; then all of that is put back (`undoing`), and
the captured call runs for good. So its result and its effects are what the user gets, once. Where the two differ, an
`AccuracyError` names the first place.

Compared are results and exceptions; arguments, parameters, buffers, attributes, lists, dicts, variables of closures,
globals, classes; of tensors also strides, whose memory they share, `requires_grad` and `.grad`; the state of random
generators and torch's modes. Of what was there before the call, it has to be the very object. With the backend "eager"
tensors have to be equal bit by bit (any NaN is like any other); other backends may round differently, so values are
held to the tolerance of the settings. They may also draw other random numbers: where eager draws some, only the kinds
of tensors are compared.

What cannot be verified:

- gradients, until they are computed: a backward that runs later is not part of the call;
- what is printed: the original's output is swallowed, its warnings too;
- other effects on the world outside (files, sockets, logging, environment, other processes): they happen twice;
- what native code hides, and globals and classes of installed packages: what the original does to them is not undone.

Some calls cannot be made twice: an iterator is in reach, which the first one uses up; or autograd keeps account of a
write to an argument. In the first case the captured call alone is made, in the second the original's result is
returned. Each is logged, once.
"""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from types import MethodType
from typing import Any

from torchsleuth import config, torch_compat
from torchsleuth.case.surroundings import state as surroundings
from torchsleuth.compare.comparison import Tolerance
from torchsleuth.compare.rng import RngState
from torchsleuth.errors import AccuracyError
from torchsleuth.frontend import backends
from torchsleuth.frontend.noting import Notes, compared
from torchsleuth.frontend.undoing import Reach

log = logging.getLogger("torchsleuth.frontend")

_EAGER_AT_WORK: ContextVar[bool] = ContextVar("torchsleuth.verifying", default=False)
_SAID: set[tuple[str, str]] = set()


def checked(captured: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The call of a `Captured`, held against eager. Raises an `AccuracyError` where they differ."""
    if _EAGER_AT_WORK.get():
        return captured.fn(*args, **kwargs)
    return _verified(captured, args, kwargs).get()  # what it raises does not hold on to our notes


def _verified(captured: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Outcome:
    with torch_compat.plain_torch():
        reach = Reach(_roots(captured.fn, args, kwargs))
    if reach.why_not:
        _say_once(captured, reach.why_not)
        return _Outcome.of(lambda: captured.run(args, kwargs))
    start = RngState.capture()
    with surroundings.restored(surroundings.observe(stable=True)), _quietly() as printed:
        eager = _Outcome.of(lambda: captured.fn(*args, **kwargs))
        modes_hold, why_not = torch_compat.state_check()
        end = RngState.capture()
    with torch_compat.plain_torch():
        lost = reach.lost()
    if lost:
        _say_once(captured, lost)
        printed.print()
        end.restore()
        return eager
    exact = captured.backend is backends.eager
    expected, found = Notes(reach, exact=exact), Notes(reach, exact=exact)
    with torch_compat.plain_torch():
        expected.take(eager.value, eager.error, reach.changed())
        reach.put_back()
    start.restore()
    got = _Outcome.of(lambda: captured.run(args, kwargs))
    if got.error is not None and eager.error is None:
        raised: Any = got.error  # it may be the backend's own: whoever knows it has to get it
        raised.add_note("This call was verified: eager does not raise this.")
        return got
    cause = "" if modes_hold() else f"torch's modes are not as eager leaves them: {why_not()}."
    drawn = RngState.capture()
    values = exact or start.same_as(end)
    tolerance = Tolerance.exact() if exact else Tolerance(tol=config.current().tolerance)
    with torch_compat.plain_torch():
        found.take(got.value, got.error, reach.changed())
        comparison = compared(expected, found, tolerance, values=values)
    if not comparison:
        cause = str(comparison)
    elif values and not end.same_as(drawn):
        cause = cause or "The generators of random numbers are not as eager leaves them."
    if cause:
        raise AccuracyError(
            f"captured, {_name(captured)} does not do what it does in eager",
            cause=cause,
            remedy=f"call the original until this is mended, {_whom_to_tell(captured, exact=exact)}: what was recorded "
            "is in `.segments`, and `.forget()` drops it",
        ) from got.error
    return got


def _whom_to_tell(captured: Any, *, exact: bool) -> str:
    """With the backend "eager" nobody else is there who could be wrong."""
    if exact:
        return "and please report it"
    backend = getattr(captured.backend, "__name__", None) or type(captured.backend).__name__
    fn = _name(captured).replace("<locals>.", "")
    return f"and find out whether it is the backend {backend} or torchsleuth (`sleuth witness SCRIPT:{fn}` says which)"


def _roots(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What a call begins with, and how it is called in words."""
    yield from ((f"args[{number}]", value) for number, value in enumerate(args))
    yield from ((f"kwargs[{name!r}]", value) for name, value in kwargs.items())
    if isinstance(fn, MethodType):
        yield "self", fn.__self__
        fn = fn.__func__
    yield getattr(fn, "__name__", "self"), fn


def _say_once(captured: Any, words: str) -> None:
    name = _name(captured)
    if (name, words) not in _SAID:
        _SAID.add((name, words))
        log.warning("%s is not verified, since it cannot be called twice: %s", name, words)


def _name(captured: Any) -> str:
    return getattr(captured.fn, "__qualname__", None) or type(captured.fn).__qualname__


# ---- running it ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Outcome:
    """What a call has returned, or raised."""

    value: Any = None
    error: BaseException | None = None

    @classmethod
    def of(cls, call: Callable[[], Any]) -> _Outcome:
        try:
            return cls(call())
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is what the call does
            return cls(error=error)

    def get(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value


class _Printed:
    """What was printed, in case it has to be printed after all."""

    def __init__(self) -> None:
        self.out, self.err = io.StringIO(), io.StringIO()

    def print(self) -> None:
        for kept, stream in ((self.out, sys.stdout), (self.err, sys.stderr)):
            if kept.getvalue():
                stream.write(kept.getvalue())


@contextlib.contextmanager
def _quietly() -> Iterator[_Printed]:
    """Nothing is printed, nobody is warned, and what is captured runs in eager and is not verified itself."""
    printed = _Printed()
    token = _EAGER_AT_WORK.set(True)
    try:
        with (
            contextlib.redirect_stdout(printed.out),
            contextlib.redirect_stderr(printed.err),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield printed
    finally:
        _EAGER_AT_WORK.reset(token)
