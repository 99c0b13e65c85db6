"""torch's own repro interface, served by torchsleuth: the same names and calling conventions.

    import torchsleuth.dropin
    torchsleuth.dropin.install()                the places of torch that call its own tool call ours
    python -m torchsleuth.dropin SCRIPT ARGS    a program, or a script that torch wrote, with it installed

    after_aot, after_dynamo                     compilers and backends under debugging, and the scripts they write
    debug_utils, accuracy                       running, comparing, inputs, modules as text
    fx_minifier, bisect, content_store          the smallest graph; the guilty pass; tensors on the disk

What is set is what was set for torch's: `TORCHDYNAMO_REPRO_AFTER`, `TORCHDYNAMO_REPRO_LEVEL`, `torch._dynamo.config`.
"""

from __future__ import annotations


def install() -> None:
    """Put the drop-in in the places of torch that call its own repro tool."""
    from torchsleuth.dropin import installing

    installing.install()


def uninstall() -> None:
    """Leave everything as it was before."""
    from torchsleuth.dropin import installing

    installing.uninstall()
