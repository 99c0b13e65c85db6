"""Torch's private names: what happens when some are gone, and what each accessor says on the real torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.multiprocessing.reductions import StorageWeakRef

from torchsleuth import torch_compat
from torchsleuth.errors import MissingTorchName
from torchsleuth.torch_compat import NAMES, TESTED, PrivateName, TorchNames

WE_REPLACE = (
    "torch._dynamo.repro",
    "torch._dynamo.debug_utils",
    "torch._functorch.fx_minifier",
    "torch._inductor.compiler_bisector",
)

aten = torch.ops.aten


# ---- a torch of another version --------------------------------------------------------------------------


class OtherTorch:
    """An importer for a torch that does not exist: what is in `modules` is there, the rest is not."""

    def __init__(self, version: str, modules: dict[str, Any]) -> None:
        self.modules = {"torch": SimpleNamespace(__version__=version), **modules}
        self.imported: list[str] = []

    def __call__(self, name: str) -> Any:
        self.imported.append(name)
        found = self.modules.get(name)
        if found is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if isinstance(found, Exception):
            raise found
        return found


TABLE = {
    "kept": PrivateName("torch._a", "Kept", "keeping"),
    "gone": PrivateName("torch._a", "Gone", "going on"),
    "moved": PrivateName("torch._moved", "Thing", "moving about"),
    "broken": PrivateName("torch._broken", "Thing", "breaking away"),
    "deep": PrivateName("torch._a", "sample.schema.flag", "diving"),
    "shallow": PrivateName("torch._a", "sample.schema.depth", "wading"),
}


def another_torch() -> tuple[TorchNames, OtherTorch]:
    sample = SimpleNamespace(schema=SimpleNamespace(flag=False))
    importer = OtherTorch(
        "2.99.0+cpu",
        {
            "torch._a": SimpleNamespace(Kept="kept", sample=sample),
            "torch._broken": OSError("libtorch_gone.so: cannot open shared object file"),
        },
    )
    return TorchNames(TABLE, importer), importer


def test_a_name_that_is_there_is_found_and_kept() -> None:
    names, importer = another_torch()
    assert names.resolve("kept") == "kept"
    assert names.resolve("deep") is False
    importer.modules.clear()
    importer.imported.clear()
    assert names.resolve("kept") == "kept"
    assert names.resolve("deep") is False
    assert importer.imported == []


def test_only_what_is_asked_for_is_imported() -> None:
    names, importer = another_torch()
    assert importer.imported == []
    names.resolve("kept")
    assert importer.imported == ["torch._a"]


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("gone", "AttributeError: "),
        ("moved", "ModuleNotFoundError: No module named 'torch._moved'"),
        ("broken", "OSError: libtorch_gone.so: cannot open"),
        ("shallow", "AttributeError: "),
    ],
)
def test_a_missing_name_says_which_where_why_and_what_stops_working(key: str, reason: str) -> None:
    names, _ = another_torch()
    with pytest.raises(MissingTorchName) as caught:
        names.resolve(key)
    error = caught.value
    assert error.what == (f"torch 2.99.0+cpu has no {TABLE[key].path}, so this does not work: {TABLE[key].feature}")
    assert error.cause.startswith(reason)
    assert "2.13" in error.remedy
    assert "sleuth doctor" in error.remedy
    assert error.__cause__ is not None


def test_a_key_that_is_not_in_the_table_is_our_own_mistake() -> None:
    with pytest.raises(KeyError):
        torch_compat.resolve("no such key")


def test_the_report_lists_all_missing_names() -> None:
    names, _ = another_torch()
    report = names.report()
    assert [each.name for each in report.missing] == [TABLE[key] for key in ("gone", "moved", "broken", "shallow")]
    assert list(report.missing) == names.missing()
    assert (report.torch_version, report.tested, report.checked) == ("2.99.0+cpu", False, 6)
    text = str(report)
    assert text.startswith("torch 2.99.0+cpu (not tested; tested are 2.13): 2 of 6 private names found\n")
    assert (
        "  missing: torch._broken.Thing (known since torch 2.13)\n"
        "    stops working: breaking away\n"
        "    reason: OSError: libtorch_gone.so: cannot open shared object file"
    ) in text
    assert "Kept" not in text


@pytest.mark.parametrize("error", [ModuleNotFoundError("No module named 'torch'"), OSError("libtorch.so")])
def test_without_any_torch_everything_is_missing_and_nothing_raises(error: Exception) -> None:
    def no_torch(name: str) -> Any:
        raise error

    names = TorchNames(importer=no_torch)
    report = names.report()
    assert len(report.missing) == report.checked == len(NAMES)
    assert {each.reason for each in report.missing} == {f"{type(error).__name__}: {error}"}
    assert not report.tested
    assert str(report).startswith("torch (not importable) (not tested")


@pytest.mark.parametrize(
    ("version", "tested"),
    [
        ("2.13.0+cpu", True),
        ("2.13.1", True),
        ("2.13.0a0+git1234", True),
        ("2.13", True),
        ("2.13+cpu", True),
        ("2.1", False),
        ("2.130.0", False),
        ("3.13.0", False),
        ("2.14.0.dev20260101", False),
        ("", False),
    ],
)
def test_a_version_is_tested_by_major_and_minor(version: str, tested: bool) -> None:
    assert TorchNames(TABLE, OtherTorch(version, {})).is_tested() is tested


def test_a_keyboard_interrupt_is_not_a_missing_name() -> None:
    def interrupted(name: str) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        TorchNames(importer=interrupted).missing()


ACCESSORS: dict[str, Callable[[], object]] = {
    "inductor_inner": torch_compat.inductor_compiler,
    "FakeStore": lambda: torch_compat.one_process(2, []).__enter__(),
    "register_group": lambda: torch_compat.one_process(2, ["a"]).__enter__(),
    "unregister_groups": lambda: torch_compat.fake_groups({"a": {"size": 2, "rank": 0}}),
    "resolve_group": lambda: torch_compat.group_of("a"),
    "debug_dir": torch_compat.debug_dir,
    "counters": torch_compat.intermediates_told,
    "intermediate_hook": lambda: torch_compat.intermediate_hook(lambda name, value: None),
    "dtype_abbreviations": torch_compat.dtype_abbreviations,
    "mark_dynamic": lambda: torch_compat.mark_dynamic(torch.ones(2), 0),
    "registered_backends": torch_compat.registered_backends,
    "metrics_of_thread": lambda: _enter(torch_compat.not_measured()),
    "MetricsContext": lambda: _enter(torch_compat.not_measured()),
    "is_fake": lambda: torch_compat.is_fake(1),
    "TorchDispatchMode": lambda: torch_compat.dispatch_mode(lambda op, args, kwargs: op(*args, **kwargs)),
    "tree_map": lambda: torch_compat.tree_map(str, [1]),
    "OpOverload": lambda: torch_compat.is_op_overload(1),
    "HigherOrderOperator": lambda: torch_compat.is_higher_order_op(1),
    "is_mutable": lambda: torch_compat.op_is_mutable(aten.add.Tensor),
    "is_view": lambda: torch_compat.op_is_view(aten.add.Tensor),
    "tags": lambda: torch_compat.op_tags(aten.add.Tensor),
    "arguments": lambda: torch_compat.op_arguments(aten.add.Tensor, (), {}),
    "decomposition_table": lambda: torch_compat.decomposition(aten.gelu.default),
    "clear_inductor_caches": lambda: (torch_compat.inductor_config_patch(debug=True), torch_compat.forget_compiled()),
    "probe_processor": lambda: torch_compat.processor_probe(".loads"),
    "processor_feature": lambda: torch_compat.processor_probe(".loads"),
    "header_folder": lambda: torch_compat.keep_headers_in("folder"),
    "header_locks": lambda: torch_compat.keep_headers_in("folder"),
    "inductor_config_patch": lambda: torch_compat.inductor_config_patch(debug=True),
    "operator_schemas": lambda: torch_compat.find_operator("aten", "add", None),
    "OpOverloadPacket": lambda: torch_compat.find_operator("aten", "add", None),
    "higher_order_ops": lambda: torch_compat.find_operator("higher_order", "cond", None),
    "FakeTensorMode": lambda: torch_compat.fake_mode(None),
    "FakeTensor": lambda: torch_compat.subclass_name(torch.ones(1)),
    "TracingContext": lambda: torch_compat.aot_name(),
    "BackwardState": lambda: torch_compat.is_backward_state(1),
    "pytree": lambda: torch_compat.path_key("index", 0),
    "codegen": lambda: torch_compat.takes_nested_values(torch.fx.Graph()),
    "custom_ops": lambda: torch_compat.custom_op_definition("mylib::foo"),
    "triton_kernels": lambda: torch_compat.triton_kernel(0),
    "tensor_metadata": lambda: torch_compat.tensor_metadata(torch.ones(1)),
    "size_functions": lambda: torch_compat.size_functions(),
    "integer_infinity": lambda: torch_compat.integer_infinity(),
    "ValueRanges": lambda: torch_compat.value_range(0, 1),
    "ShapeGuard": lambda: torch_compat.shape_guard(True),
    "SLoc": lambda: torch_compat.nowhere(),
    "Source": lambda: torch_compat.named_source("x", False),
    "no_hint": lambda: torch_compat.symbolic_value(torch.SymInt, None, None, False),
    "update_version_counter": lambda: torch_compat.forget_derived(None),
    "CapturedTraceback": lambda: torch_compat.no_traceback(),
    "config_unset": lambda: torch_compat.config_values("torch._dynamo.config"),
    "config_patcher": lambda: _enter(torch_compat.config_patch("torch._dynamo.config", {})),
    "dynamo_config": lambda: torch_compat.config_values("torch._dynamo.config"),
    "inductor_config": lambda: torch_compat.config_values("torch._inductor.config"),
    "functorch_config": lambda: torch_compat.config_values("torch._functorch.config"),
    "fx_config": lambda: torch_compat.config_values("torch.fx.experimental._config"),
    "compiler_config": lambda: torch_compat.config_values("torch.compiler.config"),
    "inductor_main": lambda: _enter(torch_compat.aot_compilers_wrapped(lambda compiler, phase: compiler)),
    "aot_compile": lambda: _enter(torch_compat.aot_compilers_wrapped(lambda compiler, phase: compiler)),
    "lookup_backend": lambda: torch_compat.find_backend("eager"),
    "inductor_backend": lambda: torch_compat.is_inductor_backend(1),
    "other_backend": lambda: torch_compat.is_named_backend(1),
    "dynamo_optimize": lambda: _enter(torch_compat.dynamo_backends_wrapped(lambda backend: backend)),
    "CompileContext": lambda: torch_compat.compiled_frame(),
    "RestartAnalysis": lambda: torch_compat.is_control_flow(ValueError()),
    "SkipFrame": lambda: torch_compat.is_control_flow(ValueError()),
    "fallback_exceptions": lambda: torch_compat.is_control_flow(ValueError()),
    "BackendCompilerFailed": lambda: torch_compat.carry_notes(),
    "OutputCode": lambda: (import_module(NAMES["OutputCode"].module), torch_compat.is_output_code(1)),
    "disable_current_modes": lambda: _enter(torch_compat.plain_torch()),
    "DisableTorchFunction": lambda: _enter(torch_compat.plain_torch()),
    "storage_key": lambda: torch_compat.storage_key(torch.ones(1).untyped_storage()),
    "storage_again": lambda: torch_compat.storage_again(StorageWeakRef(torch.ones(1).untyped_storage())),
    "tensor_flags": lambda: torch_compat.tensor_flags(torch.ones(1)),
    "set_tensor_flags": lambda: torch_compat.set_tensor_flags(torch.ones(1), {}),
    "times_written": lambda: torch_compat.times_written(torch.ones(1)),
    "preserve_version_counter": lambda: torch_compat.not_counting_writes([torch.ones(1)]),
    "view_base": lambda: torch_compat.view_base(torch.ones(1)),
    "sparse_indices": lambda: torch_compat.sparse_parts(torch.ones(1).to_sparse()),
    "sparse_values": lambda: torch_compat.sparse_parts(torch.ones(1).to_sparse()),
    "neg_view": lambda: torch_compat.negated(torch.ones(1)),
    "empty_quantised": lambda: torch_compat.empty_quantised(torch.qint8, 1.0, 0),
    "empty_quantised_by_channel": lambda: torch_compat.empty_quantised_by_channel(
        torch.qint8, [1], torch.ones(1), torch.zeros(1), 0
    ),
    "is_functional": lambda: torch_compat.is_wrapper(torch.ones(1)),
    "is_functorch_wrapper": lambda: torch_compat.is_wrapper(torch.ones(1)),
    "transform_depth": lambda: _enter(torch_compat.transforms_left()),
    "undo_transforms": lambda: _enter(torch_compat.transforms_left()),
    "inplace_requires_grad_allowed": lambda: _enter(torch_compat.transforms_left()),
    "allow_inplace_requires_grad": lambda: _enter(torch_compat.transforms_left()),
    "saved_hooks_enabled": lambda: _enter(torch_compat.transforms_left()),
    "enable_saved_hooks": lambda: _enter(torch_compat.transforms_left()),
    "forward_grad_enabled": lambda: _enter(torch_compat.transforms_left()),
    "set_forward_grad_enabled": lambda: _enter(torch_compat.transforms_left()),
    "dual_level": lambda: _enter(torch_compat.transforms_left()),
    "graph_break_reasons": lambda: torch_compat.explain(torch.sin, (torch.ones(1),), {}),
    "innermost_fn": lambda: (torch_compat.import_dynamo(), torch_compat.plain_function(torch.sin)),
    "OptimizedModule": lambda: (torch_compat.import_dynamo(), torch_compat.is_compiled_module(1)),
    "module_call": lambda: torch_compat.module_of_call(torch.sin),
    "compiled_call": lambda: _enter(torch_compat.called_plainly(torch.nn.ReLU())),
    "TensorGuards": lambda: torch_compat.tensor_check([torch.ones(1)], [[1]], [[1]]),
    "GlobalStateGuard": lambda: torch_compat.state_check(),
    "set_grad_mode": lambda: torch_compat.set_grad_mode(),
    "set_code_exec_strategy": lambda: torch_compat.hide_from_dynamo(lambda: None),
    "FrameExecStrategy": lambda: torch_compat.hide_from_dynamo(lambda: None),
    "FrameAction": lambda: torch_compat.hide_from_dynamo(lambda: None),
    "function_modes": lambda: torch_compat.modes_active(),
    "dispatch_modes": lambda: torch_compat.modes_active(),
    "tracing_state": lambda: torch_compat.modes_active(),
    "peek_transform": lambda: torch_compat.modes_active(),
    "TensorBase": lambda: torch_compat.tensor_base(),
    "list_backends": lambda: torch_compat.backend_names(),
    "global_buffer_hooks": lambda: torch_compat.buffer_hooks(),
    "global_pre_hooks": lambda: torch_compat.module_hooks(),
    "global_hooks": lambda: torch_compat.module_hooks(),
    "global_backward_hooks": lambda: torch_compat.module_hooks(),
    "global_backward_pre_hooks": lambda: torch_compat.module_hooks(),
    "is_torch_function_enabled": lambda: torch_compat.fact_functions([]),
    "has_torch_function_unary": lambda: torch_compat.fact_functions([]),
    "has_torch_function_variadic": lambda: torch_compat.fact_functions([]),
    "log_api_usage_once": lambda: torch_compat.fact_functions([]),
    "functorch_active": lambda: torch_compat.fact_functions([]),
    "canonical_mask": torch_compat.interpreted_functions,
    "none_or_dtype": lambda: torch_compat.fact_functions([]),
    "ShapeEnv": lambda: torch_compat.symbolic_inputs([torch.ones(2)], [[True]]),
    "DimDynamic": lambda: torch_compat.symbolic_inputs([torch.ones(2)], [[True]]),
    "StatelessSymbolicContext": lambda: torch_compat.symbolic_inputs([torch.ones(2)], [[True]]),
    "ConstantSource": lambda: torch_compat.symbolic_inputs([torch.ones(2)], [[True]]),
    "SYMPY_INTERP": lambda: _with_a_question().guard(),
    "enable_python_dispatcher": lambda: _with_a_question().propagate(make_fx(torch.relu)(torch.ones(5)), []),
    "tracing": lambda: torch_compat.symbolic_inputs([torch.ones(2)], [[True]]).tracing(),
}


def _with_a_question() -> torch_compat.SymbolicInputs:
    """Fakes of which something was asked that has to be guarded."""
    fakes = torch_compat.symbolic_inputs([torch.ones(5)], [[True]])
    assert fakes.inputs[0].shape[0] > 3
    return fakes


def _enter(context: AbstractContextManager[object]) -> None:
    with context:
        pass


def test_each_name_in_the_table_has_an_accessor_and_the_other_way_round() -> None:
    assert set(ACCESSORS) == set(NAMES)


@pytest.mark.parametrize("key", NAMES)
def test_each_accessor_says_what_stops_working(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class WithoutIt(TorchNames):
        def resolve(self, wanted: str) -> Any:
            return (
                TorchNames(importer=OtherTorch("2.99.0", {})).resolve(wanted)
                if wanted == key
                else super().resolve(wanted)
            )

    monkeypatch.setattr(torch_compat.names, "_TORCH", WithoutIt())
    with pytest.raises(MissingTorchName) as caught:
        ACCESSORS[key]()
    assert NAMES[key].path in caught.value.what
    assert NAMES[key].feature in caught.value.what


# ---- the table -------------------------------------------------------------------------------------------


def test_the_table_is_complete_and_keeps_away_from_what_we_replace() -> None:
    for name in NAMES.values():
        assert name.path.startswith("torch.")
        assert name.feature
        assert name.since in TESTED
        assert not any(f"{name.path}.".startswith(f"{each}.") for each in WE_REPLACE)


# ---- the real torch --------------------------------------------------------------------------------------

HEAVY = {"torch._inductor.config", "torch._dynamo.config"}


@pytest.mark.parametrize("key", [key for key, name in NAMES.items() if name.module not in HEAVY])
def test_the_installed_torch_has_the_cheap_names(key: str) -> None:
    torch_compat.resolve(key)


def test_the_report_on_the_installed_torch() -> None:
    """All names at once, the heavy ones too: what `sleuth doctor` prints."""
    report = torch_compat.report()
    assert report.missing == ()
    assert torch_compat.missing() == []
    assert report.tested is torch_compat.is_tested() is True
    assert str(report) == f"torch {torch.__version__} (tested): {len(NAMES)} of {len(NAMES)} private names found"


def test_fake_tensors_are_told_from_real_ones() -> None:
    real = torch.ones(2)
    mode = FakeTensorMode()
    fake = mode.from_tensor(real)
    with FunctionalTensorMode():
        wrapped = [FunctionalTensor.to_functional(fake), FunctionalTensor.to_functional(real)]
    assert torch_compat.is_fake(fake)
    assert torch_compat.is_fake(mode.from_tensor(torch.nn.Parameter(real)))
    assert torch_compat.is_fake(torch._to_functional_tensor(fake))
    assert [torch_compat.is_fake(each) for each in wrapped] == [True, False]
    for other in (
        real,
        torch.nn.Parameter(real),
        torch.ones(2, device="meta"),
        3,
        None,
        "x",
        [fake],
        type(fake),
    ):
        assert not torch_compat.is_fake(other)


class Pair(torch.Tensor):
    """A subclass that wraps two tensors, as DTensor or a quantised tensor wraps its parts."""

    left: torch.Tensor
    right: torch.Tensor

    @staticmethod
    def __new__(cls, left: torch.Tensor, right: torch.Tensor) -> Pair:
        self = torch.Tensor._make_wrapper_subclass(cls, left.shape, dtype=left.dtype)
        self.left, self.right = left, right
        return self

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["left", "right"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], *_: object) -> Pair:
        return Pair(inner["left"], inner["right"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError("a look at a tensor must not run an operator")


def test_a_subclass_is_fake_if_any_of_its_parts_is() -> None:
    real = torch.ones(2)
    fake = FakeTensorMode().from_tensor(real)
    assert not torch_compat.is_fake(Pair(real, real))
    assert torch_compat.is_fake(Pair(fake, fake))
    assert torch_compat.is_fake(Pair(real, fake))
    assert torch_compat.is_fake(Pair(fake, real))


def test_a_dispatch_mode_calls_the_handler_for_each_operator() -> None:
    seen: list[object] = []

    def double(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        seen.append(operator)
        return operator(*args, **kwargs) * 2

    with torch_compat.dispatch_mode(double):
        result = torch.ones(2) + 1
    assert seen == [aten.ones.default, aten.add.Tensor]
    assert result.tolist() == [6.0, 6.0]
    assert (torch.ones(2) + 1).tolist() == [2.0, 2.0]


def test_a_dispatch_mode_leaves_no_trace_in_dynamo() -> None:
    """Dynamo skips the frames it meets under a mode, and remembers: torch.cond would fail for ever after."""

    def choose(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    x = torch.ones(3)
    seen: list[str] = []
    calls: list[object] = []

    def watch(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        seen.append(str(op))
        return op(*args, **kwargs)

    def note(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        calls.append(op)
        return op(*args, **kwargs)

    expected = choose(x)
    with torch_compat.dispatch_mode(watch, note):
        assert torch.equal(choose(x), expected)
    assert calls == [torch.ops.higher_order.cond]
    assert "aten.sin.default" in seen
    assert torch.equal(choose(x), expected)


def test_a_dispatch_mode_sees_inside_the_branches_of_a_graph() -> None:
    """Covers: U1"""

    def choose(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    graph = make_fx(choose)(torch.ones(3))
    seen: list[object] = []

    def watch(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        seen.append(operator)
        return operator(*args, **kwargs)

    with torch_compat.dispatch_mode(watch):
        result = graph(torch.ones(3))
    assert seen == [aten.ones.default, aten.sum.default, aten.gt.Scalar, aten.sin.default]
    assert torch.equal(result, torch.ones(3).sin())


def test_trees_are_mapped() -> None:
    tree = {"a": [1, (2, None)], "b": 3}
    assert torch_compat.tree_map(lambda leaf: (leaf or 0) * 10, tree) == {"a": [10, (20, 0)], "b": 30}


def test_operators_are_recognised() -> None:
    cond = torch.ops.higher_order.cond
    assert torch_compat.is_op_overload(aten.add.Tensor)
    assert torch_compat.is_higher_order_op(cond)
    assert not torch_compat.is_higher_order_op(aten.add.Tensor)
    for other in (cond, aten.add, aten, torch.add, len, None):
        assert not torch_compat.is_op_overload(other)


@pytest.mark.parametrize(
    ("op", "mutable", "view"),
    [
        (aten.add.Tensor, False, False),
        (aten.add_.Tensor, True, False),
        (aten.add.out, True, False),
        (aten.view.default, False, True),
        (aten.split.Tensor, False, True),
        (aten.reshape.default, False, True),
        (aten.transpose_.default, True, False),
        (aten.rand.default, False, False),
    ],
    ids=str,
)
def test_operators_that_write_or_alias_are_known(op: object, mutable: bool, view: bool) -> None:
    assert torch_compat.op_is_mutable(op) is mutable
    assert torch_compat.op_is_view(op) is view


def test_the_tags_of_an_operator() -> None:
    assert torch.Tag.pointwise in torch_compat.op_tags(aten.add.Tensor)
    assert torch.Tag.nondeterministic_seeded in torch_compat.op_tags(aten.rand.default)
    assert torch.Tag.nondeterministic_seeded not in torch_compat.op_tags(aten.add.Tensor)


def test_the_arguments_of_a_call_by_name() -> None:
    x, y = torch.ones(2), torch.zeros(2)
    given = torch_compat.op_arguments(aten.add_.Tensor, (x, y), {"alpha": 2})
    assert [(one.name, one.written) for one in given] == [("self", True), ("other", False), ("alpha", False)]
    assert given[0].value is x
    assert given[1].value is y
    given = torch_compat.op_arguments(aten.sum.dim_IntList, (x, [0]), {})
    assert [(one.name, one.value) for one in given][1:] == [("dim", [0])]


def test_a_fused_operator_has_a_text_and_a_product_has_none() -> None:
    text = torch_compat.decomposition(aten.gelu.default)
    assert text is not None
    x = torch.linspace(-3, 3, 50, dtype=torch.float64)
    assert torch.allclose(text(x), torch.nn.functional.gelu(x))
    assert torch_compat.decomposition(aten.mm.default) is None


@pytest.mark.parametrize("ask", [torch_compat.op_tags, torch_compat.op_is_mutable, torch_compat.op_is_view])
@pytest.mark.parametrize("other", [aten.add, torch.ops.higher_order.cond, len, None], ids=str)
def test_what_is_no_overload_gets_no_answer(ask: Callable[[object], object], other: object) -> None:
    with pytest.raises(TypeError, match="is not an operator overload"):
        ask(other)


def test_inductor_options_change_for_a_while() -> None:
    options = importlib.import_module("torch._inductor.config")
    before = (options.max_autotune, options.triton.cudagraphs)
    with torch_compat.inductor_config_patch(**{"max_autotune": True, "triton.cudagraphs": True}):
        assert (options.max_autotune, options.triton.cudagraphs) == (True, True)
    assert (options.max_autotune, options.triton.cudagraphs) == before == (False, False)


def test_an_unknown_inductor_option_is_an_error() -> None:
    with (
        pytest.raises(AttributeError, match="no_such_option"),
        torch_compat.inductor_config_patch(no_such_option=1),
    ):
        pass
