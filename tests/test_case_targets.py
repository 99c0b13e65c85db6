"""What a graph may call: a closed table."""

from __future__ import annotations

import operator
import subprocess
import sys
from typing import Any

import pytest
import torch

from torchsleuth.case.graphs import targets
from torchsleuth.errors import BadCase, CannotHold, NeedsTrust


@pytest.mark.parametrize(
    "function",
    [
        torch.ops.aten.add.Tensor,
        torch.ops.aten.add,
        torch.ops.prims.convert_element_type.default,
        torch.ops.higher_order.cond,
        torch.ops.higher_order.flex_attention,
        torch.ops.higher_order.invoke_subgraph,
        torch.ops.higher_order.autograd_function_apply,
        torch.ops.higher_order.tag_activation_checkpoint,
        operator.getitem,
        operator.setitem,
        len,
        max,
        getattr,
        torch.relu,
        torch.zeros,
        torch.conv2d,
        torch.sym_max,
        torch.nn.functional.gelu,
        torch.nn.functional.scaled_dot_product_attention,
        torch._C._nn.linear,
        torch._C._set_grad_enabled,
        torch.amp.autocast_mode._enter_autocast,
        torch.autograd.grad_mode._enter_inference_mode,
        torch._C._autograd._get_data_attr,
        torch.mm,
        torch._functorch.predispatch._vmap_increment_nesting,
        torch.linalg.solve,
        torch.fft.rfft,
        torch.special.expit,
        torch.Tensor.add_,
    ],
    ids=lambda function: getattr(function, "__name__", type(function).__name__),
)
def test_what_graphs_call_has_a_name_that_finds_it_again(function: Any) -> None:
    """Covers: U1, U18"""
    assert targets.resolve(targets.function_name(function)) is function


@pytest.mark.parametrize(
    "name",
    [
        "os.system",
        "builtins.eval",
        "builtins.exec",
        "builtins.open",
        "builtins.__import__",
        "builtins.compile",
        "subprocess.run",
        "torch.load",
        "torch.save",
        "torch.hub.load",
        "torch.from_file",
        "torch.package.PackageImporter",
        "torch.ops.load_library",
        "torch.ops.import_module",
        "torch.ops.load_library.x.y",
        "torch.ops.aten.save.default",
        "torch.ops.aten.from_file.default",
        "torch.ops.debugprims.load_tensor.default",
        "torch.ops.prim.Print.default",
        "torch.ops.__class__.x.y",
        "torch.ops.aten.__class__",
        "torch.ops.aten.add.__call__",
        "torch.ops.aten.add.op",
        "torch.ops.aten",
        "torch.ops.aten.no_such_thing.default",
        "torch.ops.somebodys.own.default",
        "operator.methodcaller",
        "operator.attrgetter",
        "operator.call",
        "torch._C._load_for_lite_interpreter",
        "torch.Tensor.__reduce_ex__",
        "torch.Tensor.apply_",
        "torch.nn.functional.__builtins__",
        "torch.nn.functional.torch",
        "",
        "a b",
        "a..b",
        "torch.ops.aten.add.Tensor; import os",
        "x" * 100_000,
    ],
)
def test_what_is_not_in_the_table_cannot_be_called(name: str) -> None:
    """Covers: U3, U25"""
    with pytest.raises((BadCase, NeedsTrust)) as caught:
        targets.resolve(name, file="case.json", field="graph.nodes[3].target")
    assert "case.json: graph.nodes[3].target" in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("name", ["__reduce_ex__", "__class__", "apply_", "map_", "register_hook", "numpy", "", "x y"])
def test_methods_that_lead_out_of_tensors_cannot_be_called(name: str) -> None:
    with pytest.raises(BadCase):
        targets.method(name)


@pytest.mark.parametrize("name", ["add_", "view", "to", "size", "contiguous", "__getitem__", "__add__", "backward"])
def test_methods_of_tensors_can_be_called(name: str) -> None:
    assert targets.method(name) == name


def test_no_function_in_the_table_reads_files_or_runs_code() -> None:
    """The words that give such functions away. Whatever is found here has to be looked at."""
    suspicious = ("load", "save", "file", "pickle", "exec", "eval", "import", "compile", "hub", "jit", "script")
    harmless = {
        "torch._functorch.predispatch.lazy_load_decompositions",
        "torch._functorch.vmap.lazy_load_decompositions",
        "torch.autograd.forward_ad._maybe_load_decompositions",
        "torch.autograd.graph.saved_tensors_hooks",
        "torch._C._autograd._saved_tensors_hooks_disable",
        "torch._C._autograd._saved_tensors_hooks_enable",
        "torch.nn.functional.huber_loss",
        "torch._C._nn.huber_loss",
    }
    found = {name for name in targets._table() if any(word in name.lower() for word in suspicious)}
    assert found - harmless == set()


def test_a_function_of_the_users_own_is_named_but_not_found() -> None:
    """Covers: U3"""

    def mine(x: torch.Tensor) -> torch.Tensor:
        return x

    with pytest.raises(CannotHold):
        targets.function_name(mine)
    name = targets.target_name(mine)
    assert name.startswith("test_case_targets.")
    assert name.endswith(".mine")
    with pytest.raises(NeedsTrust, match="mine"):
        targets.resolve(name)
    assert targets.is_unknown(name)
    assert targets.target_name(subprocess.run) == "subprocess.run"
    with pytest.raises(NeedsTrust):
        targets.resolve("subprocess.run")


def test_torchs_own_operators_are_told_from_other_peoples() -> None:
    assert not targets.is_custom("torch.ops.aten.add.Tensor")
    assert not targets.is_custom("operator.add")
    assert targets.is_custom("torch.ops.mylib.foo.default")


FOUND_ALONE = """
import os, sys
from torchsleuth.case.graphs import targets

assert "torch._inductor.inductor_prims" not in sys.modules
of_namespace = {}
for name in sys.argv[1:]:
    of_namespace.setdefault(name.split(".")[2], []).append(name)
for names in of_namespace.values():
    if os.fork() == 0:  # so that no namespace is found because another one was
        print(*(targets.resolve(name) for name in names), flush=True)
        os._exit(0)
    os.wait()
"""


def test_operators_that_torch_registers_late_are_there_in_a_process_that_has_imported_torch_alone() -> None:
    """Max pooling, for one, is an operator of Inductor's own in every graph after AOT."""
    registered = (
        "import torch; ops = torch._C._dispatch_get_all_op_names; first = set(ops()); "
        "import torch._inductor.compile_fx, torch.nn.attention.varlen, torch._inductor.fx_passes.bucketing; "
        "print(*sorted(set(ops()) - first))"
    )
    late = [name.replace("::", ".") for name in _printed("-c", registered).split()]
    late = [name for name in late if name.split(".")[0] in targets.TORCHS_NAMESPACES]
    late = [name if name.count(".") == 2 else f"{name}.default" for name in late]
    assert {"prims._low_memory_max_pool_with_offsets.default", "prims.inductor_seeds.default"} < set(late)
    found = _printed("-c", FOUND_ALONE, *(f"torch.ops.{name}" for name in late)).split()
    assert sorted(found) == sorted(late)


def test_an_operator_that_torch_does_not_have_is_not_there_though_its_namespace_is_loaded() -> None:
    with pytest.raises(BadCase, match="has no such operator"):
        targets.resolve("torch.ops.prims.no_such_operator.default")


def _printed(*arguments: str) -> str:
    ran = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
