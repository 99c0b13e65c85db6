"""Modules of torch's as calls of their constructors: `Linear(in_features=20, out_features=20, bias=True)`."""

from __future__ import annotations

import ast
from typing import Any, Final

import torch

SAFE: Final[tuple[type[torch.nn.Module], ...]] = (
    torch.nn.AdaptiveAvgPool2d,
    torch.nn.BatchNorm1d,
    torch.nn.BatchNorm2d,
    torch.nn.BatchNorm3d,
    torch.nn.Conv1d,
    torch.nn.Conv2d,
    torch.nn.Conv3d,
    torch.nn.ConvTranspose1d,
    torch.nn.Dropout,
    torch.nn.Embedding,
    torch.nn.Flatten,
    torch.nn.GELU,
    torch.nn.GLU,
    torch.nn.Identity,
    torch.nn.LSTM,
    torch.nn.LayerNorm,
    torch.nn.Linear,
    torch.nn.MaxPool2d,
    torch.nn.ReLU,
    torch.nn.Softmax,
    torch.nn.Tanh,
)
"""Modules that print as the call that makes them."""

_FAKE_QUANT: Final = "torch.ao.quantization.fake_quantize"
_QAT: Final = ("torch.ao.nn.qat.modules", "torch.ao.nn.intrinsic.qat.modules")
_ENGINES: Final = ("fbgemm", "x86", "qnnpack", "onednn")


def source_of(module: torch.nn.Module) -> str | None:
    """A call that makes a module like this one; None if there is none that is sure to."""
    if type(module) in SAFE:
        return _printed_call(module)
    home = type(module).__module__
    if home == _FAKE_QUANT:
        return _fake_quantiser(module)
    if home.startswith(_QAT):
        return _trained_quantised(module)
    return None


def _printed_call(module: torch.nn.Module) -> str | None:
    """What the module prints as, if that is a call of literals. Some print text without quotes: `padding=same`."""
    try:
        call = ast.parse(repr(module), mode="eval").body
    except (SyntaxError, ValueError):
        return None
    if not isinstance(call, ast.Call):
        return None
    told = {one.arg: one.value for one in call.keywords if isinstance(one.value, ast.Name)}
    if not told:
        return repr(module)
    for keyword in call.keywords:
        if keyword.arg in told:
            keyword.value = ast.Constant(getattr(module, keyword.arg or "", None))
    return ast.unparse(call)


def _path(kind: type[Any]) -> str:
    return f"{kind.__module__}.{kind.__name__}"


def _call(kind: type[Any], *positional: Any, **named: str) -> str:
    said = [repr(one) for one in positional] + [f"{name}={value}" for name, value in named.items()]
    return f"{_path(kind)}({', '.join(said)})"


def _fake_quantiser(module: Any) -> str | None:
    observer = getattr(module, "activation_post_process", None)
    if observer is None:
        return None
    low, high = module.quant_min, module.quant_max
    named = {"observer": _path(type(observer))}
    if getattr(observer, "reduce_range", False):  # the constructor halves the range that it is given
        low, high = 2 * low, 2 * high + 1
    named |= {name: repr(value) for name, value in (("quant_min", low), ("quant_max", high))}
    named |= {name: repr(getattr(module, name)) for name in ("dtype", "qscheme", "is_dynamic")}
    named |= {name: repr(getattr(observer, name)) for name in ("reduce_range", "ch_axis") if hasattr(observer, name)}
    return _call(type(module), **named)


def _trained_quantised(module: Any) -> str | None:
    """A layer that is trained with quantisation in mind, if what it is quantised by is one of torch's own defaults."""
    qconfig = _default_qconfig(getattr(module, "qconfig", None))
    if qconfig is None:
        return None
    bias = repr(module.bias is not None)
    if hasattr(module, "in_features"):
        return _call(type(module), module.in_features, module.out_features, bias=bias, qconfig=qconfig)
    if not hasattr(module, "kernel_size"):
        return None
    places = ("kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")
    named = {name: repr(getattr(module, name)) for name in places} | {"bias": bias}
    norm = getattr(module, "bn", None)
    if norm is not None:
        named |= {"eps": repr(norm.eps), "momentum": repr(norm.momentum), "freeze_bn": repr(module.freeze_bn)}
    return _call(type(module), module.in_channels, module.out_channels, **named, qconfig=qconfig)


def _default_qconfig(qconfig: Any) -> str | None:
    from torch.ao.quantization import get_default_qat_qconfig

    for engine in _ENGINES:
        try:
            usual = get_default_qat_qconfig(engine)
        except AssertionError:  # this torch does not know it
            continue
        if repr(usual) == repr(qconfig):
            return f"torch.ao.quantization.get_default_qat_qconfig({engine!r})"
    return None
