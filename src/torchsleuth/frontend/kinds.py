"""Of what class a value is, without asking the value.

`isinstance` asks for `value.__class__`, if the type alone does not say yes: code of the user's may stand behind that
(`__getattribute__`), which may print, count, or raise.
"""

from __future__ import annotations

from typing import Any


def is_a(value: Any, kinds: Any) -> bool:
    """Whether a value is of one of these classes, or of an heir of theirs."""
    return issubclass(type(value), kinds)
