"""Comparing results: do two values agree (`same`), do two models (`same_two_models`), bug or noise (`judge`)?"""

from .agree import same
from .clones import clone_inputs
from .comparison import Comparison, Tolerance
from .fp64 import cast_to_fp64
from .judgement import Judgement, LeafEvidence, RngEvidence, Verdict
from .models import (
    Results,
    collect_results,
    reduce_to_scalar_loss,
    requires_bwd_pass,
    run_fwd_maybe_bwd,
    same_two_models,
)
from .trial import Effort, judge

__all__ = [
    "Comparison",
    "Effort",
    "Judgement",
    "LeafEvidence",
    "Results",
    "RngEvidence",
    "Tolerance",
    "Verdict",
    "cast_to_fp64",
    "clone_inputs",
    "collect_results",
    "judge",
    "reduce_to_scalar_loss",
    "requires_bwd_pass",
    "run_fwd_maybe_bwd",
    "same",
    "same_two_models",
]
