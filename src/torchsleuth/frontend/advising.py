"""What a user may change, in words, where a break or a guard that did not hold does not say so itself.

    advice_for_break("with a my.Timer")                             enter the context outside of what is captured
    advice_for_miss("model.calls is 0", "it is 1 now")              keep the counter out of what is captured, ...

Both go by the words of the reason, so what is new gets an answer too: the general one, which is never wrong.
"""

from __future__ import annotations

import re
from typing import Final

ALWAYS: Final = "do it before or after what is captured, or write it with operators of torch"
"""What helps with any break."""

_OF_BREAKS: Final[tuple[tuple[str, str], ...]] = (
    (r"from_numpy|frombuffer|as_tensor", "make the tensor beforehand, and hand it over as an argument"),
    (r"numpy|ndarray", "use the function of torch instead of numpy's, or do it beforehand"),
    (r"^print\b|logging|warnings", "say it outside of what is captured, or not at all"),
    (r"^(open|input|breakpoint)\b", "take it out of what is captured"),
    (r"^(exec|eval|compile|__import__|importing)\b", "import, and make code, when the program begins"),
    (r"coroutine|async", "capture the function that computes, and await outside of it"),
    (r"stack of frames", "take it out of what is captured: it has to find the real frames"),
    (r"nested .* deep", "turn the recursion into a loop, or capture a smaller function"),
    (r"instructions were interpreted", "capture the body of the loop instead of the loop"),
    (r"depends on the data", "keep shapes and decisions free of values: torch.where, or a mask that is multiplied"),
    (r"value of a tensor", "let torch choose: torch.where, index_select, gather"),
    (r"torch\.optim\b", "step the optimizer outside of what is captured"),
    (r"_thread|threading|\bLock\b", "lock and unlock outside of what is captured"),
    (r"hidden state|calls back", "call it before or after; if it only computes: torch.library.custom_op"),
    (r"a tensor of the class", "make a plain tensor of it first"),
    (r"\b(is made|is not set up yet)\b", "make it once, outside of what is captured"),
    (r"\b(is set|is deleted|sets an attribute)\b", "return the new value, and set it outside of what is captured"),
    (r"from before the graph", "mend the break before it, which cuts it off; or make a list of it beforehand"),
    (r"generator|iterator|next value|iterating over", "make a list or a tuple of it beforehand"),
    (r"^with a ", "enter the context outside of what is captured"),
    (r"\btext of\b", "make text outside of what is captured"),
    (r"\b(address|hash)\b", "tell objects apart by something of their own: a number, or a name"),
    (r"\bkey of a dict\b|element of a set", "take a string or a number as the key"),
    (r"ContextVar", "set and reset it outside of what is captured"),
    (r"has a cache", "read it beforehand, and hand it over as an argument"),
    (r"Python's library", "call it before or after, or write it with plain Python"),
    (r"could not make|refers to itself", "keep it inside of the function, or make it outside"),
    (r"\bis (read|computed each time)\b", "read it beforehand, and hand it over as an argument"),
    (r"the instruction \w+ is not known", "write the line with simpler statements"),
)  # fmt: skip

_OF_MISSES: Final[tuple[tuple[str, str], ...]] = (
    (r"size mismatch|sizes must", "sizes that change: torch.compile(..., dynamic=True), or torch._dynamo.mark_dynamic"),
    (r"result of a break", "a value that is taken out of a tensor is new each time: keep it a tensor"),
    (r"global state", "see that grad mode, autocast and the like are the same in each call"),
    (r"dtype|device|stride|requires_grad|dispatch", "call it with tensors of one kind"),
    (r" is -?\d+(\.\d+)?.* it is -?\d+", "count outside of what is captured, or keep the number in a tensor"),
)


def advice_for_break(reason: str) -> str:
    """What to do about a break with this reason."""
    return _found(_OF_BREAKS, reason) or ALWAYS


def advice_for_miss(guard: str, found: str) -> str:
    """What to do about a guard that did not hold; empty if there is no telling."""
    return _found(_OF_MISSES, f"{guard}: {found}")


def _found(table: tuple[tuple[str, str], ...], words: str) -> str:
    return next((advice for pattern, advice in table if re.search(pattern, words)), "")
