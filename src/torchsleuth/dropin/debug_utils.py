"""The helpers of torch's own tool, under their names. What they do lives in the modules around this one."""

from __future__ import annotations

from torchsleuth.dropin.inputs import (
    InputReader as InputReader,
    InputWriter as InputWriter,
    NopInputReader as NopInputReader,
)
from torchsleuth.dropin.models import (
    AccuracyError as AccuracyError,
    backend_accuracy_fails as backend_accuracy_fails,
    cast_to_fp64 as cast_to_fp64,
    clone_inputs_retaining_gradness as clone_inputs_retaining_gradness,
    run_fwd_maybe_bwd as run_fwd_maybe_bwd,
    same_two_models as same_two_models,
)
from torchsleuth.dropin.modules import (
    MAX_CONSTANT_NUMEL_INLINE as MAX_CONSTANT_NUMEL_INLINE,
    NNModuleToString as NNModuleToString,
    UnsupportedNNModuleError as UnsupportedNNModuleError,
    lost_module as lost_module,
    stored_constant as stored_constant,
    with_state as with_state,
)
from torchsleuth.dropin.parsing import aot_graph_input_parser as aot_graph_input_parser
from torchsleuth.dropin.places import (
    get_minifier_repro_path as get_minifier_repro_path,
    helper_for_dump_minify as helper_for_dump_minify,
    minifier_dir as minifier_dir,
)
from torchsleuth.dropin.surroundings import (
    generate_config_string as generate_config_string,
    generate_env_vars_string as generate_env_vars_string,
)
