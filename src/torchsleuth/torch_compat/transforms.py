"""What graphs of `torch.func` enter: levels of transforms, and what is allowed inside them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torchsleuth.torch_compat.names import resolve


@contextmanager
def transforms_left() -> Iterator[None]:
    """Whatever is entered inside and not left, because something failed in between, is left in the end."""
    import torch

    allows_inplace, allow_inplace = resolve("inplace_requires_grad_allowed"), resolve("allow_inplace_requires_grad")
    has_hooks, enable_hooks = resolve("saved_hooks_enabled"), resolve("enable_saved_hooks")
    has_forward, set_forward = resolve("forward_grad_enabled"), resolve("set_forward_grad_enabled")
    undo = resolve("undo_transforms")
    depth, level = resolve("transform_depth")(), _dual_level()
    before = allows_inplace(), has_hooks(), has_forward()
    try:
        yield
    finally:
        while _dual_level() > level:
            torch.autograd.forward_ad.exit_dual_level()
        undo(depth)
        if allows_inplace() != before[0]:
            allow_inplace(before[0])
        if before[1] and not has_hooks():
            enable_hooks()
        if has_forward() != before[2]:
            set_forward(before[2])


def _dual_level() -> int:
    import torch

    resolve("dual_level")
    return int(torch.autograd.forward_ad._current_level)  # another number each time
