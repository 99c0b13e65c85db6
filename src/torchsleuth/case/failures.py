"""What went wrong, as data: a failure from an exception.

except Exception as error:
    store.save(recording.case(inputs, compiler, failure=raised(error)))

Exceptions come in chains, since torch raises its own in the place of the first one. `links` are those that belong
together, and the last of them is the root: what it says, and where it was raised, tell one failure from another.
Nothing here raises, whatever the exception is: one that cannot be printed is still a failure.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from typing import Final

from torchsleuth.case import schema
from torchsleuth.case.normalising import decisive, normalised
from torchsleuth.case.plain import printable
from torchsleuth.outcome import Stage
from torchsleuth.torch_compat.stages import DECISIVE, REMOTE_TRACEBACKS, calls_in, place

_LONGEST: Final = 100_000
_DEEPEST: Final = 20
FRAMES: Final = 8
"""So many functions of an exception's stack are part of a signature."""
ALL_FRAMES: Final = 32
"""And so many of the stack of something that was stopped: it tells where that was, not where it failed."""
_REMOTE_LINE: Final = re.compile(r'^ +File "(?P<file>[^"\n]+)", line \d+, in (?P<function>[^\n]+)$', re.M)
_REMOTE_END: Final = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: (?P<said>.*))?$", re.M)


def raised(error: BaseException, stage: Stage = Stage.UNKNOWN) -> schema.Failure:
    """The failure that an exception is: its chain of types, what it says, where it was raised, and its traceback."""
    signature = schema.Signature(
        "raised", stage, type_names(error), normalised(root_words(error)), frames=frames_of(error)
    )
    return schema.Failure(signature, message=message_of(error), traceback=traceback_of(error))


# ---- chains ----------------------------------------------------------------------------------------------


def chain(error: BaseException) -> Iterator[BaseException]:
    """The exception and those that it came from, outermost first.

    torch's own keep the first one as `inner_exception`, and are raised `from None`.
    """
    one: BaseException | None = error
    seen: set[int] = set()
    while one is not None and id(one) not in seen and len(seen) < _DEEPEST:
        seen.add(id(one))
        yield one
        one = one.__cause__ or _wrapped(one) or (None if one.__suppress_context__ else one.__context__)


def is_aside(behind: BaseException, error: BaseException) -> bool:
    """Whether the one was merely being handled when the other was raised: it may have nothing to do with it."""
    return behind is error.__context__ and behind is not error.__cause__ and behind is not _wrapped(error)


def links(error: BaseException) -> list[BaseException]:
    """The exceptions that tell of one failure, outermost first; the last is its root.

    What was merely being handled is not one of them, nor is what is behind an exception that says it all.
    """
    found: list[BaseException] = []
    for one in chain(error):
        if found and (is_aside(one, found[-1]) or (_is_remote(one) and not _stands_alone(one))):
            break
        found.append(one)
        if _name(one) in DECISIVE:
            break
    return found


def _wrapped(error: BaseException) -> BaseException | None:
    inner = getattr(error, "__dict__", {}).get("inner_exception")
    return inner if isinstance(inner, BaseException) else None


def _name(error: BaseException) -> str:
    return printable(f"{type(error).__module__}.{type(error).__qualname__}")


def _is_remote(error: BaseException) -> bool:
    return _name(error) in REMOTE_TRACEBACKS


def _stands_alone(error: BaseException) -> bool:
    """Whether it is there in the place of the remote exception, and not behind it, to tell where that was raised."""
    return not _name(error).endswith("._RemoteTraceback")


# ---- parts -----------------------------------------------------------------------------------------------


def type_names(error: BaseException) -> tuple[str, ...]:
    """Qualified types, outermost first. The last is that of the root, also if that was raised in another process."""
    found = links(error)
    names = [_name(one) for one in found]
    if _is_remote(found[-1]):
        remote = _remote_end(found[-1])
        names += [remote["type"]] if remote is not None else []
    return tuple(names)


def message_of(error: BaseException) -> str:
    """What the exception says."""
    return printable(_said(error)[:_LONGEST])


def root_words(error: BaseException) -> str:
    """What the root says, in short: what of it tells one failure from another."""
    root = links(error)[-1]
    said = _said(root)
    remote = _remote_end(root) if _is_remote(root) else None
    if remote is not None:
        said = f"{remote['said'] or ''}\n{said[remote.end() :]}"
    return printable(decisive(said))


def frames_of(error: BaseException, most: int = FRAMES) -> tuple[str, ...]:
    """The innermost functions of torch in which the root was raised, innermost first, as `module:function`."""
    try:
        found = links(error)
        remote = [one for one in chain(error) if _is_remote(one)]
        stack = [place(frame) for frame, _ in traceback.walk_tb(found[-1].__traceback__)]
        if remote:
            stack += [(line["file"], line["function"]) for line in _REMOTE_LINE.finditer(_said(remote[-1]))]
        return tuple(printable(name) for name in calls_in(reversed(stack), most))
    except Exception:  # noqa: BLE001 - an exception's own attributes may be anything
        return ()


def traceback_of(error: BaseException) -> str:
    """The traceback with all that Python prints of it; the end of it, if it is long."""
    try:
        lines = traceback.format_exception(error)
    except Exception:  # noqa: BLE001 - its notes or its attributes are not what they have to be
        lines = [*traceback.format_tb(error.__traceback__), f"{_name(error)}: {_said(error)}"]
    return printable("".join(lines)[-_LONGEST:])


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as trouble:  # noqa: BLE001 - the failure is what counts, not how it prints
        return f"(it cannot be printed: {type(trouble).__qualname__})"


def _remote_end(error: BaseException) -> re.Match[str] | None:
    """The line of a remote traceback that names the exception: the first that is not indented after the last frame."""
    said = _said(error)
    ends = [line.end() for line in _REMOTE_LINE.finditer(said)]
    return _REMOTE_END.search(said, ends[-1]) if ends else None
