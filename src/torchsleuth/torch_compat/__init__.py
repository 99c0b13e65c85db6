"""The one place that knows torch's private names: which ones, on which versions, and what each is good for.

Private names move between torch versions without notice. All of them stand in one table, `NAMES`; nothing
else in torchsleuth imports from a private module of torch. They are looked up on first use, so importing
this module is cheap and one lost name takes away one feature, not the program:

    resolve("OpOverload")        the object, or `MissingTorchName` that says what stops working
    missing(), report()          check the whole table without raising (for `sleuth doctor`)
    is_fake(x), tree_map(...)    what the rest of torchsleuth calls: one small function for each need

To follow a new torch: run `sleuth doctor`, correct the entries, run the tests, extend `TESTED`.
To try out a torch that does not exist, give `TorchNames` another importer, as the tests do.
"""

from __future__ import annotations

from torchsleuth.torch_compat.bisector import (
    Answers as Answers,
    Bisector as Bisector,
    answer_bisector as answer_bisector,
    bisector_answers as bisector_answers,
    bisector_module as bisector_module,
    counters_kept as counters_kept,
    current_answers as current_answers,
)
from torchsleuth.torch_compat.caches import (
    forget_compiled as forget_compiled,
    import_dynamo as import_dynamo,
    import_inductor as import_inductor,
    keep_headers_in as keep_headers_in,
    processor_probe as processor_probe,
)
from torchsleuth.torch_compat.collectives import one_process as one_process
from torchsleuth.torch_compat.configuration import (
    CONFIG_MODULES as CONFIG_MODULES,
    config_defaults as config_defaults,
    config_is_loaded as config_is_loaded,
    config_patch as config_patch,
    config_set_by_program as config_set_by_program,
    config_values as config_values,
    inductor_config_patch as inductor_config_patch,
)
from torchsleuth.torch_compat.explaining import (
    DynamoBreak as DynamoBreak,
    Explained as Explained,
    call_instead as call_instead,
    called_plainly as called_plainly,
    explain as explain,
    is_compiled_module as is_compiled_module,
    module_call as module_call,
    module_of_call as module_of_call,
    plain_function as plain_function,
)
from torchsleuth.torch_compat.fakes import (
    aot_name as aot_name,
    as_fake as as_fake,
    donated_inputs as donated_inputs,
    fake_mode as fake_mode,
    know_as as know_as,
    know_item as know_item,
    quiet_fakes as quiet_fakes,
    quiet_shapes as quiet_shapes,
    shape_env_of as shape_env_of,
    subclass_name as subclass_name,
    symbols_of as symbols_of,
    tracing as tracing,
)
from torchsleuth.torch_compat.functions import (
    find_operator as find_operator,
    functions_in_graphs as functions_in_graphs,
    operator_path as operator_path,
)
from torchsleuth.torch_compat.graphs import (
    CustomOp as CustomOp,
    ModuleParts as ModuleParts,
    custom_op_definition as custom_op_definition,
    is_backward_state as is_backward_state,
    is_script_object as is_script_object,
    module_classes as module_classes,
    module_parts as module_parts,
    new_module as new_module,
    path_key as path_key,
    takes_nested_values as takes_nested_values,
    tensor_metadata as tensor_metadata,
    triton_kernel as triton_kernel,
    unboxed as unboxed,
)
from torchsleuth.torch_compat.names import (
    NAMES as NAMES,
    TESTED as TESTED,
    Missing as Missing,
    PrivateName as PrivateName,
    Report as Report,
    TorchNames as TorchNames,
    is_tested as is_tested,
    missing as missing,
    report as report,
    resolve as resolve,
)
from torchsleuth.torch_compat.operators import (
    Argument as Argument,
    decomposition as decomposition,
    is_higher_order_op as is_higher_order_op,
    is_op_overload as is_op_overload,
    op_arguments as op_arguments,
    op_is_mutable as op_is_mutable,
    op_is_view as op_is_view,
    op_name as op_name,
    op_returns_list as op_returns_list,
    op_tags as op_tags,
)
from torchsleuth.torch_compat.recording import (
    backend_names as backend_names,
    buffer_hooks as buffer_hooks,
    fact_functions as fact_functions,
    hide_from_dynamo as hide_from_dynamo,
    interpreted_functions as interpreted_functions,
    modes_active as modes_active,
    module_hooks as module_hooks,
    operator_kinds as operator_kinds,
    operator_mode as operator_mode,
    operator_modules as operator_modules,
    plain_init as plain_init,
    set_grad_mode as set_grad_mode,
    state_check as state_check,
    tensor_base as tensor_base,
    tensor_check as tensor_check,
)
from torchsleuth.torch_compat.repro import (
    compile_inner as compile_inner,
    debug_dir as debug_dir,
    dtype_abbreviations as dtype_abbreviations,
    dynamo_config as dynamo_config,
    fake_groups as fake_groups,
    group_of as group_of,
    intermediate_hook as intermediate_hook,
    intermediates_told as intermediates_told,
    keep_intermediate_hooks as keep_intermediate_hooks,
    load_repro_tools as load_repro_tools,
    mark_dynamic as mark_dynamic,
    not_measured as not_measured,
    registered_backends as registered_backends,
    triton_constants as triton_constants,
)
from torchsleuth.torch_compat.seams import (
    INDUCTOR_COMPILER as INDUCTOR_COMPILER,
    aot_compilers_wrapped as aot_compilers_wrapped,
    carry_notes as carry_notes,
    compiled_frame as compiled_frame,
    dynamo_backends_wrapped as dynamo_backends_wrapped,
    find_backend as find_backend,
    inductor_backend as inductor_backend,
    inductor_compiler as inductor_compiler,
    inner_compiler as inner_compiler,
    is_control_flow as is_control_flow,
    is_for_serialising as is_for_serialising,
    is_inductor_backend as is_inductor_backend,
    is_named_backend as is_named_backend,
    is_output_code as is_output_code,
    other_backend as other_backend,
    output_code_of as output_code_of,
)
from torchsleuth.torch_compat.shapes import (
    forget_derived as forget_derived,
    integer_infinity as integer_infinity,
    named_source as named_source,
    no_traceback as no_traceback,
    nowhere as nowhere,
    shape_guard as shape_guard,
    size_functions as size_functions,
    symbolic_expr as symbolic_expr,
    symbolic_value as symbolic_value,
    value_range as value_range,
)
from torchsleuth.torch_compat.sizes import SymbolicInputs as SymbolicInputs, symbolic_inputs as symbolic_inputs
from torchsleuth.torch_compat.tensors import (
    dispatch_mode as dispatch_mode,
    empty_quantised as empty_quantised,
    empty_quantised_by_channel as empty_quantised_by_channel,
    is_fake as is_fake,
    is_wrapper as is_wrapper,
    negated as negated,
    not_counting_writes as not_counting_writes,
    plain_torch as plain_torch,
    set_tensor_flags as set_tensor_flags,
    sparse_parts as sparse_parts,
    storage_again as storage_again,
    storage_key as storage_key,
    tensor_flags as tensor_flags,
    times_written as times_written,
    tree_map as tree_map,
    view_base as view_base,
)
from torchsleuth.torch_compat.transforms import transforms_left as transforms_left
