"""Minifying every kind of case, from the watched program to the smallest case: what is left, and how many questions
that took. Backends of the tests' own fail for one operator, so hardly anything is compiled.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import bug_samples
import minify_backends
from minify_backends import aot
from reduce_driving import targets
from test_minify import as_expected
from torchsleuth.capture.backends import watch
from torchsleuth.case.schema import Generated, Tensor
from torchsleuth.case.stores.store import Store
from torchsleuth.config import After
from torchsleuth.reduce.graphs import placeholders, produced
from torchsleuth.reduce.minifying import Reduction, Terms, minify
from torchsleuth.reduce.order import elements_of
from torchsleuth.reduce.sizes import symbols_of
from torchsleuth.run.runners.in_process import InProcess
from torchsleuth.run.scripts import run_script


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def minified(
    folder: Path,
    program: Callable[..., Any],
    inputs: tuple[Any, ...],
    backend: Any,
    *,
    dynamic: bool = False,
    train: bool = False,
    runs: Any = as_expected,
    **watching: Any,
) -> Reduction:
    """Watch a program fail, and minify the case that is kept of it."""
    torch.manual_seed(0)
    torch.compiler.reset()
    compiled = torch.compile(program, backend=watch(backend, store=str(folder), **watching), dynamic=dynamic)

    def run() -> None:
        result = compiled(*inputs)
        if train:
            result.sum().backward()

    with pytest.raises(Exception, match=r"no lowering|something else|match\.kwargs"):
        run()
    store = Store.open(folder)
    (entry,) = store.entries()
    terms = Terms(trust=True)
    gc.collect()
    gc.freeze()  # each query in this process collects garbage, which takes as long as there are objects to look at
    result = minify(store.find(entry.id), store=store, runner=InProcess(), run_script=runs, terms=terms)
    assert result.is_verified
    assert not result.why
    return result


def after_dynamo(folder: Path, program: Any, inputs: tuple[Any, ...], backend: str, **how: Any) -> Reduction:
    return minified(folder, program, inputs, getattr(minify_backends, backend), after="dynamo", **how)


def check(result: Reduction, calls: str, elements: int, ends: int, queries: int) -> None:
    """What is left, down to plain values and settings, after so many questions."""
    case, size = result.after, result.size
    assert [name for name in targets(case) if name != "getitem"] == calls.split()
    assert (size.elements, size.ends) == (elements, ends)
    assert result.spent.queries <= queries
    assert size.data == 0
    assert size.dtypes <= 2
    assert not any(tensor.requires_grad for tensor in case.inputs if isinstance(tensor, Tensor))
    assert all(isinstance(one.content, Generated) and one.content.how == "constant" for one in case.storages)
    assert case.state == type(case.state)()


def randn(*size: int, **options: Any) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(0), **options)


# ---- programs ------------------------------------------------------------------------------------------------


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.linear = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu_(self.norm(self.convolution(x)))
        return F.log_softmax(self.linear(F.max_pool2d(y, 2).mean((2, 3))), -1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.project = nn.Linear(8, 24)
        self.norm = nn.LayerNorm(8)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        x = self.embedding(index)
        q, k, v = (part[:, None] for part in self.project(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)[:, 0]
        first, second = torch.split(self.norm(y + x), 4, -1)
        return torch.cat([second, first], -1).cumsum(1)


WORDS = torch.tensor([[1, 3, 5, 7, 2], [3, 19, 4, 3, 0]])


def sized(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (torch.cat([x * 2, y.sin()]).cos() * y.shape[0]).sum(1)


def branching(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    branches = (lambda a, b: (a.sin() @ b).relu() + 1), (lambda a, b: (a.cos() @ b) * 2)
    found: torch.Tensor = torch.cond(x.sum() > 0, *branches, (x, y))
    return found.exp().sum(0)


def in_place(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x * 2
    z.relu_()
    y.copy_(z.sum(0))
    z.add_(y)
    return z.exp()


# ---- one operator of a model -----------------------------------------------------------------------------------


def test_a_convolutional_model_in_training_after_dynamo(tmp_path: Path) -> None:
    """What the forward alone shows needs no gradients. Covers: U16, U19"""
    inputs = (randn(4, 3, 8, 8, requires_grad=True),)
    result = after_dynamo(tmp_path, Convolutional(), inputs, "refuse__max_pool2d", train=True)
    check(result, "max_pool2d", 1, 2, 26)


@pytest.mark.parametrize(
    ("operator", "elements", "ends", "queries"),
    [
        ("embedding", 2, 3, 36),
        ("cat", 1, 2, 28),
    ],
)
def test_a_model_with_attention_after_dynamo(
    operator: str, elements: int, ends: int, queries: int, tmp_path: Path
) -> None:
    """Covers: U19"""
    check(after_dynamo(tmp_path, Attention(), (WORDS,), f"refuse__{operator}"), operator, elements, ends, queries)


@pytest.mark.parametrize(
    ("program", "inputs", "operator", "queries"),
    [
        (Convolutional, randn(4, 3, 8, 8), "convolution_backward", 46),
        (Attention, WORDS, "_scaled_dot_product_flash_attention_for_cpu_backward", 34),
    ],
)
def test_the_backward_of_a_model(program: Any, inputs: Any, operator: str, queries: int, tmp_path: Path) -> None:
    """A gradient is still returned: what an operator is not asked for shows nothing. Covers: U16, U25"""
    result = minified(tmp_path, program(), (inputs,), aot(f"refuse__{operator}"), train=True)
    check(result, operator, 1, 2, queries)
    (call,) = (node for node in result.after.graph.nodes if node.name.startswith(operator))
    returned = [node for node in result.after.graph.nodes if node.target == "operator.getitem"]
    assert [produced(node) is not None for node in returned] == [True]
    assert call.args[0] is not None


# ---- symbolic sizes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["aot", "dynamo"])
@pytest.mark.parametrize("kind", ["symbolic", "refuse"])
def test_sizes_stay_symbolic_only_if_they_have_to(kind: str, stage: str, tmp_path: Path) -> None:
    """Covers: U4, U19"""
    inputs = randn(7, 5), randn(3, 5)
    if stage == "aot":
        result = minified(tmp_path, sized, inputs, aot(f"{kind}__mul"), dynamic=True)
    else:
        result = after_dynamo(tmp_path, sized, inputs, f"{kind}__mul", dynamic=True)
    symbolic = kind == "symbolic"
    check(result, "mul", 2 if symbolic else 1, 2, 32 if symbolic else 26)
    (given,) = placeholders(result.after.graph)
    assert bool(list(symbols_of(produced(given)))) == bool(result.after.symbols.symbols) == symbolic
    assert len(result.after.symbols.symbols) == symbolic


def test_a_number_in_an_input_is_no_obstacle(tmp_path: Path) -> None:
    """Dynamo hands on a probability as a tensor, and takes the number out of it. Covers: U4"""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
    inputs = randn(5, 8), randn(7, 3)
    result = after_dynamo(
        tmp_path, lambda x, y: model(x) @ y.T + x.shape[0], inputs, "refuse__dropout", dynamic=True, train=True
    )
    check(result, "dropout", 1, 2, 38)


# ---- nested graphs ---------------------------------------------------------------------------------------------


def test_what_is_inside_a_branch_comes_out(tmp_path: Path) -> None:
    """Covers: U19"""
    check(after_dynamo(tmp_path, branching, (randn(4, 6), randn(6, 6)), "refuse__relu"), "relu", 1, 2, 30)


def test_a_branch_that_matters_itself_is_small_inside(tmp_path: Path) -> None:
    """Covers: U19"""
    result = minified(tmp_path, branching, (randn(4, 6), randn(6, 6)), aot("refuse__cond"))
    check(result, "cond sin cos", 2, 3, 32)


def test_a_region_that_is_computed_again_is_small_inside(tmp_path: Path) -> None:
    """What a nested graph is given is known inside as it is outside. Covers: U19"""
    model = nn.Sequential(nn.Linear(6, 12), nn.Dropout(0.3), nn.Tanh(), nn.Linear(12, 6))
    result = after_dynamo(
        tmp_path,
        lambda x: checkpoint(model, x, use_reentrant=False) * 2,
        (randn(4, 6),),
        "refuse__tag_activation_checkpoint",
        train=True,
    )
    check(result, "tag_activation_checkpoint relu", 1, 2, 42)


# ---- values ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", ["gather", "embedding"])
def test_an_index_that_matters(operator: str, tmp_path: Path) -> None:
    """A wrong result for one index: that one is left, and as few places as it needs. Covers: U5, U19, U25"""
    index = torch.tensor([[0, 1, 3], [2, 4, 4], [3, 0, 1], [1, 2, 0]])
    programs: dict[str, Callable[..., Any]] = {
        "gather": lambda x, i: (torch.gather((x.cos() @ x.T).exp(), 1, i) * 2).sum(1),
        "embedding": lambda x, i: F.embedding(i, x.sin()).cos().sum(-1),
    }
    result = minified(tmp_path, programs[operator], (randn(5, 6), index), aot(f"wrong__{operator}"), level=4)
    check(result, operator, 5, 3, 85)
    by_dtype = {one.dtype: one for one in result.after.inputs if isinstance(one, Tensor)}
    assert by_dtype["int64"].storage is not None
    content = result.after.storages[by_dtype["int64"].storage].content
    assert isinstance(content, Generated)
    assert content.low == 3
    assert elements_of(by_dtype["float32"]) == 4


@pytest.mark.parametrize(
    ("backend", "level", "left", "queries"),
    [("refuse__copy_", 2, "copy_", 20), ("wrong__relu_", 4, "relu_", 20)],
)
def test_writing_in_place(backend: str, level: int, left: str, queries: int, tmp_path: Path) -> None:
    """Covers: U19"""
    result = after_dynamo(tmp_path, in_place, (randn(4, 6), randn(6)), backend, level=level)
    check(result, left, 1, 2, queries)


def test_constants_and_random_numbers(tmp_path: Path) -> None:
    """Neither the constants of a graph nor what it draws is left, nor a state of a generator. Covers: U16, U19"""

    def program(x: torch.Tensor) -> torch.Tensor:
        return (F.dropout(x.sin(), 0.3) * torch.tensor([1.0, 2.0, 3.0]) + torch.rand(3)).relu().sum(0)

    result = minified(tmp_path, program, (randn(4, 3),), aot("refuse__relu"))
    check(result, "relu", 1, 2, 24)
    assert result.after.graph.attributes == ()


# ---- in earnest --------------------------------------------------------------------------------------------------


def test_the_script_of_a_backend_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is run, if the backend can be found. Covers: U26"""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    result = after_dynamo(tmp_path, sized, (randn(7, 5), randn(3, 5)), "refuse__cat", runs=run_script)
    check(result, "cat", 1, 2, 24)
    assert result.script is not None
    assert "minify_backends.refuse__cat" in result.script.read_text()


@pytest.mark.inductor
def test_a_pattern_of_inductors_after_dynamo(tmp_path: Path) -> None:
    """pytorch#188223. Two operators, and nothing to call them with. Covers: U19, U26"""
    program, inputs = bug_samples.patmatch_take(1)
    result = minified(tmp_path, program, inputs, "inductor", after="dynamo", runs=run_script)
    check(result, "randperm take", 0, 1, 44)
    assert result.after.compiler.after is After.DYNAMO
