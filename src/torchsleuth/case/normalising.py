"""A message without what varies: from run to run, and from a graph to a smaller one with the same bug.

decisive(text)      the part of a message that tells what is wrong: an `error:` of the C++ compiler, or the first line,
                    with Dynamo's explanation of it
normalised(text)    that part without addresses, paths, sizes, symbols and made-up names

Only what a program's size or the machine decide is taken away. Names of operators, dtypes and attributes stay, with
their digits: they tell one bug from another. How often a name is repeated in a list is a matter of size.

`s8` may be a size or a dtype, `i1` an index or a dtype. They count as dtypes where a word before them says so (`type`,
`expected`, `got`, `to` ...) and no operator of arithmetic follows; sizes with such names in such places are rare.
"""

from __future__ import annotations

import re
from typing import Final

_LONGEST: Final = 500
_SEARCHED: Final = 4_000_000
_LONGEST_LINE: Final = 4_000

_CPP_ERROR: Final = re.compile(r"^[^\n]{0,4000}?\b(?:fatal )?error: (?P<said>[^\n]+)$", re.M)
_CPP_DIAGNOSTIC: Final = re.compile(
    r"^[^\n:]{1,4000}(?::\d+){1,2}: ?[^\W\d]+(?: [^\W\d]+)? ?[:：] ?(?P<said>(?![^\n]*\[-W(?!error))[^\n]+)$", re.M
)
"""The same in whatever language the compiler speaks. Warnings name the option that they come from."""
_UNDEFINED: Final = re.compile(r"(?P<said>undefined reference to [^\n]+)$", re.M)
_CPP_HEAD: Final = "C++ compile error"
_CPP_OUTPUT: Final = "\nOutput:\n"
_APPENDED: Final = re.compile(
    r"^\s*(?:target: |args\[\d+\]: |kwargs: |While executing |Original traceback|Found from ?:|from user code:"
    r"|Set TORCHDYNAMO_VERBOSE|Exception raised from )",
    re.M,
)
"""Where torch's own listings begin: the operator's arguments, the user's stack."""

_EXPLANATION: Final = "Explanation: "
_GONE: Final = "…"
_PATH: Final = re.compile(
    r"(?<![\w.…])(?:[A-Za-z]:)?[\\/](?:[\w.+@~-]+[\\/])*[\w.+@~-]+(?:(?::\d+)+)?|<eval_with_key>\S*"
)
_ADDRESS: Final = re.compile(r"\b0x[0-9a-fA-F]+\b")
_HASH: Final = re.compile(r"\b(?=\w*\d)(?:[0-9a-f]{12,}|[a-z0-9]{20,})\b")
_KERNEL: Final = re.compile(r"\b(?:cpp|triton_[a-z]{3})_fused_\w+")
_BUFFER: Final = re.compile(
    r"\b(buf|arg|args|tmp|var|op|kernel|primals|tangents|getitem|in_out_ptr|in_ptr|out_ptr)(?:_?\d+)+(?!\w)"
)
_NUMBERED: Final = re.compile(r"\b([A-Za-z]\w*?)(?:_\d+)+(?![\w…])")
"""A node's name with its number: `add_12`. The first of its kind has none."""
_ACC: Final = re.compile(r"\b((?:[A-Za-z]\w*_)?(?:tmp|acc|masked)_?(?:acc|vec)?)\d+(?=_|\b)")
"""A variable of a kernel: `tmp12`, `tmp_acc1_vec`."""
_SIZE: Final = r"(?:(?:[suxyzrpqdk]|zf|zuf|ks|ps)\d+|i[0-7])"
_SHAPE: Final = re.compile(rf"\b(?:{_SIZE}|\d+)(?:x(?:{_SIZE}|\d+))+\b")
"""`2x3`, `s0x3`."""
_DTYPE: Final = r"['\"`‘]?(?:[us](?:8|16|32|64)|i[14])\b['\"`’]?"
_SYMBOL: Final = re.compile(
    r"(?P<dtype>\b(?i:d?types?|expected|got|found|from|to|into|as)(?:[:=] ?| )"
    rf"{_DTYPE}(?:(?:,|,? (?:and|or|vs|not)) {_DTYPE})*(?! ?(?:[-+*/%^<>=]|!=)))|\b{_SIZE}\b"
)
_AMOUNT: Final = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?: ?(?:[KMGTP]i?B|bytes?|B|L)\b)?(?![\w])")
_TERM: Final = re.compile(
    r"…(?: ?(?:\*\*|//|[-+*/%^]) ?…)+|\b(?:FloorDiv|CeilDiv|CleanDiv|ModularIndexing|Max|Min|Mod|PythonMod)\(…\)"
)
_LISTED: Final = re.compile(r"…(?:, ?…)+,?|(?<=[\[(])…,(?=[\])])")
_REPEATED: Final = re.compile(
    r"(?P<one>(?P<quote>['\"])\w+(?P=quote)|\b(?:buf|arg|tmp|op|primals|tangents|getitem)\b)"
    r"(?:(?:, ?(?P=one)(?!\w))+,?|,(?=[\])}]))"
)
"""`'buf', 'buf'`: a list of names that are the same without their numbers."""
_EMPTY: Final = re.compile(r"\[\]|(?<!\w)\(\)")
_NESTED: Final = re.compile(r"\[\[…\]\]|\(\(…\)\)")
_SPACE: Final = re.compile(r"\s+")


def decisive(text: str) -> str:
    """Of a message, what tells the failure."""
    text = text[:_SEARCHED]
    if _CPP_HEAD in text:
        begin = max(text.find(_CPP_OUTPUT), 0)
        for rule in (_CPP_ERROR, _UNDEFINED, _CPP_DIAGNOSTIC):
            if (found := rule.search(text, begin)) is not None:
                return found["said"].strip()[:_LONGEST_LINE]
    end = _APPENDED.search(text)
    lines = [line for line in map(str.strip, (text[: end.start()] if end else text).splitlines()) if line]
    told = lines[:2] if lines and lines[0].endswith(":") else lines[:1]
    told += [line for line in lines[len(told) : len(told) + 1] if line.startswith(_EXPLANATION)]
    return " ".join(told)[:_LONGEST_LINE]


def normalised(text: str) -> str:
    """What a message says, without what varies."""
    before = None
    while text != before:  # what one rule leaves may be for another
        before, text = text, _once(decisive(text))
    return text


def _once(text: str) -> str:
    text = _PATH.sub(_GONE, text)
    text = _ADDRESS.sub(_GONE, text)
    text = _KERNEL.sub("kernel", text)
    text = _HASH.sub(_GONE, text)
    text = _BUFFER.sub(r"\1", text)
    text = _ACC.sub(r"\1", text)
    text = _NUMBERED.sub(r"\1", text)
    text = _SHAPE.sub(_GONE, text)
    text = _SYMBOL.sub(lambda match: match["dtype"] or _GONE, text)
    text = _AMOUNT.sub(_GONE, text)
    text = _EMPTY.sub(lambda match: match[0][0] + _GONE + match[0][1], text)
    for rule in (_LISTED, _TERM):
        text = rule.sub(_GONE, text)
    text = _REPEATED.sub(r"\g<one>", text)
    text = _NESTED.sub(lambda match: match[0][1:-1], text)
    return _SPACE.sub(" ", text).strip()[:_LONGEST]
