"""What went wrong, as data: a failure from an exception.

except Exception as error:
    store.save(recording.case(inputs, compiler, failure=raised(error)))
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from typing import Final

from torchsleuth.case import schema
from torchsleuth.case.plain import printable
from torchsleuth.outcome import Stage

_LONGEST: Final = 100_000
_DEEPEST: Final = 20
_VARIES: Final = re.compile(r"0x[0-9a-fA-F]+|(?<![\w.])/[\w./-]+/|\d+")


def raised(error: BaseException, stage: Stage = Stage.UNKNOWN) -> schema.Failure:
    """The failure that an exception is: its chain of types, what it says, and its traceback."""
    message = printable(str(error))
    return schema.Failure(
        schema.Signature(
            "raised",
            stage,
            tuple(f"{type(one).__module__}.{type(one).__qualname__}" for one in chain(error)),
            normalised(message),
        ),
        message=message[:_LONGEST],
        traceback=printable("".join(traceback.format_exception(error)))[-_LONGEST:],
    )


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


def _wrapped(error: BaseException) -> BaseException | None:
    inner = vars(error).get("inner_exception")
    return inner if isinstance(inner, BaseException) else None


def normalised(message: str) -> str:
    """The first line of a message without what varies from run to run: addresses, folders, numbers."""
    first = next((line.strip() for line in message.splitlines() if line.strip()), "")
    return _VARIES.sub("…", first)[:500]
