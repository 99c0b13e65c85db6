"""The settings of torch's own tool, which is what its users set: `torch._dynamo.config`."""

from __future__ import annotations

from torchsleuth import torch_compat


def checked_after() -> str | None:
    """Which graphs are debugged now: "dynamo", "aot" or None. Anything else is an AssertionError, at once."""
    after: str | None = torch_compat.dynamo_config().repro_after
    if after not in ("dynamo", "aot", None):
        raise AssertionError(f"torch._dynamo.config.repro_after is {after!r}: it has to be 'dynamo', 'aot' or None")
    return after
