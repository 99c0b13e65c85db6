"""Torch's words that may stand in a case: dtypes, layouts, devices and their like, known without torch.

Listing and checking cases must not take the seconds that importing torch takes, so these tables are written down
here. A test compares them with the torch that is installed: a dtype more or less is found there.
"""

from __future__ import annotations

import keyword
import re
import unicodedata
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

DTYPE_BITS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "bool": 8,
        **{f"{sign}int{bits}": 8 for sign in ("", "u") for bits in range(1, 9)},
        **{f"{sign}int{bits}": bits for sign in ("", "u") for bits in (16, 32, 64)},
        "bfloat16": 16,
        "float16": 16,
        "float32": 32,
        "float64": 64,
        **dict.fromkeys(
            (
                "float8_e4m3fn",
                "float8_e4m3fnuz",
                "float8_e5m2",
                "float8_e5m2fnuz",
                "float8_e8m0fnu",
                "float4_e2m1fn_x2",
            ),
            8,
        ),
        "complex32": 32,
        "complex64": 64,
        "complex128": 128,
        "bits1x8": 8,
        "bits2x4": 8,
        "bits4x2": 8,
        "bits8": 8,
        "bits16": 16,
        "qint8": 8,
        "qint32": 32,
        "quint8": 8,
        "quint4x2": 4,
        "quint2x4": 2,
    }
)
"""How many bits of its storage one element of a tensor takes."""

LAYOUT_PARTS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "strided": 0,
        "sparse_coo": 2,
        "sparse_csr": 3,
        "sparse_csc": 3,
        "sparse_bsr": 3,
        "sparse_bsc": 3,
        "_mkldnn": 1,
        "jagged": 0,
    }
)
"""The layouts, and of how many tensors one of that layout is made up if it is not strided."""

MEMORY_FORMATS: Final = frozenset({"contiguous_format", "preserve_format", "channels_last", "channels_last_3d"})

QUANTISATION_SCHEMES: Final = frozenset(
    {
        "per_tensor_affine",
        "per_channel_affine",
        "per_tensor_symmetric",
        "per_channel_symmetric",
        "per_channel_affine_float_qparams",
    }
)

DEVICE_TYPES: Final = frozenset(
    (
        "cpu cuda ipu xpu mkldnn opengl opencl ideep hip ve fpga maia xla lazy vulkan mps meta hpu mtia privateuseone"
    ).split()
)

CONSTANTS: Final = frozenset({*DTYPE_BITS, *LAYOUT_PARTS, *MEMORY_FORMATS, *QUANTISATION_SCHEMES})
"""What a `schema.Torch` may name."""

_DEVICE = re.compile(r"([a-z]+)(?::(0|[1-9][0-9]{0,3}))?")
_PATH = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
_KEY = re.compile(r"[\w-]+")
_LONGEST = 2048

_INNARDS: Final = frozenset(
    f"__{name}__"
    for name in (
        "annotations base bases builtins call class closure code defaults del delattr dict func getattr "
        "getattribute globals import init init_subclass kwdefaults loader module mro new prepare qualname reduce "
        "reduce_ex self set_name setattr setstate spec subclasses subclasshook weakref wrapped"
    ).split()
)
"""Names by which one gets from an object to the interpreter. No graph has a use for them."""


def is_device(text: str) -> bool:
    """Whether it is a device as torch writes it: `cpu`, `cuda:1`."""
    match = _DEVICE.fullmatch(text)
    return match is not None and match[1] in DEVICE_TYPES


def is_identifier(text: str) -> bool:
    """Whether a variable can have that name, and has it as it is written: Python reads `ﬁ` as `fi`."""
    return len(text) <= _LONGEST and _is_normal_identifier(text) and not keyword.iskeyword(text)


def is_path(text: str) -> bool:
    """Whether it looks like the name of a function: `torch.ops.aten.add.Tensor`."""
    if len(text) > _LONGEST:
        return False
    if _PATH.fullmatch(text) is None and (text.isascii() or not all(map(_is_normal_identifier, text.split(".")))):
        return False
    return "__" not in text or _INNARDS.isdisjoint(text.split("."))


def is_module(text: str) -> bool:
    """Whether a module of Python can have that name: also one that no `import` can name, such as `my-script`."""
    return len(text) <= _LONGEST and all(_KEY.fullmatch(part) is not None for part in text.split("."))


def is_attribute(text: str) -> bool:
    """Whether it can be the name of one attribute of a module: `weight`, `0`, `my-layer`."""
    return "." not in text and is_attribute_path(text)


def is_attribute_path(text: str) -> bool:
    """Whether it can be the path of an attribute of a module: `layers.0.weight`, `experts.my-layer.größe`."""
    return 0 < len(text) <= _LONGEST and all(map(_is_attribute_part, text.split(".")))


def is_placeholder(text: str) -> bool:
    """Whether it can be the name of an input of a graph: `x`, `*args`, `**kwargs`."""
    name = text.removeprefix("*").removeprefix("*")
    return len(text) <= _LONGEST and name.isidentifier() and not keyword.iskeyword(name)


def _is_normal_identifier(text: str) -> bool:
    return text.isidentifier() and (text.isascii() or unicodedata.normalize("NFKC", text) == text)


def _is_attribute_part(text: str) -> bool:
    if not text.isidentifier() and _KEY.fullmatch(text) is None:
        return False
    # Python takes an identifier in its normal form: other spellings of `__class__` are `__class__`.
    plain = text if text.isascii() else unicodedata.normalize("NFKC", text)
    return not (plain.startswith("__") and plain.endswith("__"))
