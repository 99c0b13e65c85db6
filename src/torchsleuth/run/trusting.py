"""Whose code a run would execute. What is not torch's own runs only for those who say that they trust it."""

from __future__ import annotations

from torchsleuth.case import schema
from torchsleuth.case.graphs import targets
from torchsleuth.case.script.compilers import is_foreign
from torchsleuth.case.script.graphs import graphs_in


def needs_trust(case: schema.Case, compiler: str | None = None) -> str | None:
    """Why a run needs trust, if it does. `compiler` is the one that is used instead of the case's own."""
    if case.code:
        return f"it holds code of the user's own ({case.code[0].name}); run it with --trust, if you trust its author"
    backend = case.compiler.backend if compiler is None else compiler
    if is_foreign(backend):
        return f"the backend {backend} is not torch's own; run it with --trust, if you trust it"
    for _, graph in graphs_in(case.graph, ""):
        for node in graph.nodes:
            if node.op == "call_function" and (targets.is_custom(node.target) or targets.is_unknown(node.target)):
                return f"{node.target} is not a function of torch's own; run it with --trust, if you trust its author"
    return None
