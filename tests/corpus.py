"""Programs whose graphs are kept as cases: real models, dynamic shapes, operators of every odd kind.

Each entry of `PROGRAMS` makes a `Program`; `captured(program)` runs it under a recording backend and gives every graph
that came by: `Captured` with the graph, what it was called with, and how it was compiled.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch._inductor.compile_fx import compile_fx

PROGRAMS: dict[str, Callable[[], Program]] = {}


@dataclass
class Program:
    """Something to compile and call. `train`: run backward as well."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    dynamic: bool | None = False
    train: bool = False
    around: Callable[[], Any] | None = None


@dataclass
class Captured:
    """One graph that a backend was given."""

    name: str
    gm: torch.fx.GraphModule
    example_inputs: list[Any]
    arguments: dict[str, Any]
    phase: str
    extra: dict[str, Any] = field(default_factory=dict)


def program(build: Callable[[], Program]) -> Callable[[], Program]:
    PROGRAMS[build.__name__] = build
    return build


# ---- recording -------------------------------------------------------------------------------------------


def capture(
    name: str,
    program: Program,
    on_graph: Callable[[Captured], None],
    on_call: Callable[[Captured, list[Any]], None],
    on_result: Callable[[Captured, Any], None] = lambda found, result: None,
    *,
    after: str = "aot",
) -> None:
    """Run a program; `on_graph` gets each graph before anybody changes it, `on_call` its first real inputs.

    The graphs run as they are, node by node: nothing is compiled. `on_result` gets what such a run returned and the
    inputs as it left them.
    """
    number = {"forward": 0, "backward": 0, "inference": 0, "dynamo": 0}

    def note(gm: torch.fx.GraphModule, inputs: Any, arguments: dict[str, Any], phase: str) -> Any:
        suffix = number[phase]
        number[phase] += 1
        found = Captured(f"{name}-{phase}{suffix or ''}", gm, list(inputs), arguments, phase)
        with torch.utils._python_dispatch._disable_current_modes():
            eager = copy.deepcopy(gm)
        on_graph(found)
        called = False

        def run(args: list[Any]) -> Any:
            nonlocal called
            args = list(args)
            if called:
                return eager(*args)
            called = True
            on_call(found, args)
            result = eager(*args)
            on_result(found, (result, args))
            return result

        return run

    def inner(gm: torch.fx.GraphModule, inputs: Any, **arguments: Any) -> Any:
        phase = "backward" if arguments.get("is_backward") else "inference"
        phase = "forward" if phase == "inference" and not arguments.get("is_inference") else phase
        run = note(gm, inputs, arguments, phase)
        run._boxed_call = True
        return run

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        if after == "aot":
            return compile_fx(gm, inputs, inner_compile=inner)
        run = note(gm, inputs, {}, "dynamo")
        return lambda *args: run(list(args))

    torch._dynamo.reset()
    compiled = torch.compile(program.function, backend=backend, dynamic=program.dynamic)
    args = copy.deepcopy(program.args)
    torch.manual_seed(7)
    with program.around() if program.around else _nothing():
        if program.train:
            _loss(compiled(*args)).backward()
        else:
            with torch.no_grad():
                compiled(*args)


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def _loss(result: Any) -> torch.Tensor:
    if isinstance(result, torch.Tensor):
        return result.abs().sum() if result.is_complex() else result.float().pow(2).sum()
    if hasattr(result, "logits"):
        return _loss(result.logits)
    if hasattr(result, "last_hidden_state"):
        return _loss(result.last_hidden_state)
    losses = [_loss(each) for each in result if isinstance(each, torch.Tensor) and each.requires_grad]
    return torch.stack(losses).sum()


def _seeded(*size: int, **options: Any) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(sum(size)), **options)


# ---- real models -----------------------------------------------------------------------------------------


def _ids(*size: int, below: int = 99) -> torch.Tensor:
    return torch.randint(0, below, size, generator=torch.Generator().manual_seed(3))


def _bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    return BertModel(
        BertConfig(vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=37)
    )


@program
def bert() -> Program:
    return Program(_bert().eval(), (_ids(2, 7),))


@program
def bert_training() -> Program:
    return Program(_bert().train(), (_ids(2, 7),), train=True)


def _gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=99, n_positions=32, n_embd=32, n_layer=2, n_head=4, use_cache=False))


@program
def gpt2() -> Program:
    return Program(_gpt2().eval(), (_ids(2, 7),))


@program
def gpt2_training_dynamic() -> Program:
    return Program(_gpt2().train(), (_ids(2, 7),), train=True, dynamic=True)


def _llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=99,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            use_cache=False,
        )
    )


@program
def llama_dynamic() -> Program:
    return Program(_llama().eval(), (_ids(2, 9),), dynamic=True)


@program
def llama_training() -> Program:
    return Program(_llama().train(), (_ids(2, 7),), train=True)


@program
def t5_training() -> Program:
    from transformers import T5Config, T5Model

    torch.manual_seed(0)
    model = T5Model(
        T5Config(
            vocab_size=99,
            d_model=32,
            d_kv=8,
            d_ff=37,
            num_layers=2,
            num_heads=4,
            use_cache=False,
            decoder_start_token_id=0,
        )
    )
    return Program(lambda ids: model(input_ids=ids, decoder_input_ids=ids), (_ids(2, 6),), train=True)


@program
def mamba_training() -> Program:
    from transformers import MambaConfig, MambaModel

    torch.manual_seed(0)
    model = MambaModel(MambaConfig(vocab_size=99, hidden_size=16, state_size=4, num_hidden_layers=1, use_cache=False))
    return Program(model, (_ids(1, 5),), train=True)


@program
def convolutions_training() -> Program:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 5)
    )
    return Program(model, (_seeded(2, 3, 8, 8),), train=True)


@program
def channels_last() -> Program:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.GELU(), nn.ConvTranspose2d(8, 4, 3)).to(
        memory_format=torch.channels_last
    )
    return Program(model, (_seeded(2, 4, 9, 9).contiguous(memory_format=torch.channels_last),))


# ---- symbolic sizes --------------------------------------------------------------------------------------


@program
def dynamic_mlp_training() -> Program:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
    return Program(lambda x, y: model(x) @ y.T + x.shape[0], (_seeded(5, 8), _seeded(7, 3)), dynamic=True, train=True)


@program
def dynamic_arithmetic() -> Program:
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        half = (x.shape[0] * 2 + 1) // 3
        return x[:half] * float(y.shape[0]), y.repeat(2, 1)[: x.shape[0]], torch.arange(max(x.shape[0], y.shape[0]) + 1)

    return Program(f, (_seeded(11, 4), _seeded(6, 4)), dynamic=True)


@program
def dynamic_convolution() -> Program:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
    return Program(model, (_seeded(3, 3, 13, 17),), dynamic=True)


@program
def unbacked_sizes() -> Program:
    def f(x: torch.Tensor, n: torch.Tensor) -> Any:
        size = n.item()
        torch._check(size >= 2)
        torch._check(size < x.shape[0])
        return x[:size].relu() + 1, torch.zeros(size, 3)

    return Program(
        f, (_seeded(9, 3), torch.tensor(4)), around=lambda: torch._dynamo.config.patch(capture_scalar_outputs=True)
    )


@program
def unbacked_nonzero() -> Program:
    def f(x: torch.Tensor) -> Any:
        found = torch.nonzero(x > 0)
        return found * 2, x[x > 0].sum()

    return Program(
        f, (_seeded(6, 3),), around=lambda: torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
    )


# ---- operators that take functions -----------------------------------------------------------------------


@program
def cond() -> Program:
    def f(x: torch.Tensor, p: torch.Tensor) -> Any:
        return torch.cond(p, lambda x: x.sin() + 1, lambda x: x.cos() * 2, (x,))

    return Program(f, (_seeded(4, 3), torch.tensor(True)))


@program
def cond_dynamic() -> Program:
    def f(x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x.sin() * x.shape[0], lambda x: x.cos() - x.shape[0], (x,))

    return Program(f, (_seeded(4, 3),), dynamic=True)


@program
def while_loop() -> Program:
    from torch._higher_order_ops.while_loop import while_loop

    def f(i: torch.Tensor, x: torch.Tensor) -> Any:
        return while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * 1.5 + i), (i, x))

    return Program(f, (torch.tensor(0), _seeded(4)))


@program
def map_() -> Program:
    from torch._higher_order_ops.map import map as control_map

    return Program(
        lambda xs, y: control_map(lambda x, y: x.sin() + y, xs, y),
        (_seeded(3, 4), _seeded(4)),
        around=lambda: torch._dynamo.config.patch(capture_scalar_outputs=True),
    )


@program
def map_that_inductor_refuses() -> Program:
    """Without `capture_scalar_outputs` Inductor raises, and has to raise the same again."""
    return Program(map_().function, map_().args)


@program
def scan() -> Program:
    from torch._higher_order_ops.scan import scan

    def f(init: torch.Tensor, xs: torch.Tensor) -> Any:
        return scan(lambda carry, x: (carry + x, carry * x), init, xs)

    return Program(
        f, (_seeded(4), _seeded(3, 4)), around=lambda: torch._dynamo.config.patch(capture_scalar_outputs=True)
    )


@program
def associative_scan() -> Program:
    from torch._higher_order_ops.associative_scan import associative_scan

    return Program(lambda x: associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic"), (_seeded(8, 2),))


@program
def flex_attention() -> Program:
    from torch.nn.attention.flex_attention import flex_attention

    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        out = flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score + bias[i - j + 16])
        assert isinstance(out, torch.Tensor)
        return out

    return Program(f, (_seeded(1, 2, 16, 16), _seeded(1, 2, 16, 16), _seeded(1, 2, 16, 16), _seeded(33)))


@program
def checkpoint_training() -> Program:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.Dropout(0.3), nn.Tanh(), nn.Linear(12, 6))

    def f(x: torch.Tensor) -> Any:
        return torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False) * 2

    return Program(f, (_seeded(4, 6),), train=True)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return grad * 3 * x**2


@program
def autograd_function_training() -> Program:
    return Program(lambda x: Cube.apply(x) + 1, (_seeded(4, 3).requires_grad_(),), train=True)


@program
def invoke_subgraph() -> Program:
    @torch.compiler.nested_compile_region
    def block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ w)

    return Program(lambda x, w: block(block(x, w), w), (_seeded(4, 4), _seeded(4, 4)))


@program
def vmap_jacobian() -> Program:
    def f(x: torch.Tensor) -> Any:
        return torch.func.jacfwd(lambda x: (x.sin() * x).sum())(x), torch.vmap(torch.dot)(x, x)

    return Program(f, (_seeded(3, 4),))


# ---- custom operators, effects ---------------------------------------------------------------------------


@torch.library.custom_op("corpus::twice_plus", mutates_args=())
def twice_plus(x: torch.Tensor, by: float) -> torch.Tensor:
    return x * 2 + by


@twice_plus.register_fake
def _(x: torch.Tensor, by: float) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("corpus::bump_", mutates_args={"x"})
def bump_(x: torch.Tensor) -> None:
    x.add_(1)


@program
def custom_op() -> Program:
    return Program(lambda x: torch.ops.corpus.twice_plus(x.t(), 0.5).relu(), (_seeded(4, 3),))


@program
def custom_op_that_mutates() -> Program:
    def f(x: torch.Tensor) -> Any:
        y = x * 2
        torch.ops.corpus.bump_(y)
        return y + x

    return Program(f, (_seeded(4, 3),))


@program
def effect_tokens() -> Program:
    def f(x: torch.Tensor) -> Any:
        torch._higher_order_ops.print("seen {}", 3)
        return x + 1

    return Program(f, (_seeded(4),))


# ---- odd tensors, odd arguments --------------------------------------------------------------------------


@program
def complex_numbers() -> Program:
    def f(x: torch.Tensor, z: torch.Tensor) -> Any:
        return torch.fft.rfft(x) * z, (z * (1 + 2j)).conj().imag, torch.view_as_real(z).sum()

    return Program(f, (_seeded(4, 8), torch.complex(_seeded(5), _seeded(5))))


@program
def quantised() -> Program:
    quantize = torch.ops.quantized_decomposed.quantize_per_tensor.default
    dequantize = torch.ops.quantized_decomposed.dequantize_per_tensor.default

    def f(x: torch.Tensor) -> Any:
        q = quantize(x, 0.1, 3, -128, 127, torch.int8)
        return dequantize(q, 0.1, 3, -128, 127, torch.int8) + 1, q

    from torch.ao.quantization.fx import _decomposed  # noqa: F401 - registers the operators

    return Program(f, (_seeded(4, 8),))


@program
def aliasing_inputs() -> Program:
    base = _seeded(6, 4)

    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        x.mul_(2)
        return y + 1, x.sum(0)

    return Program(f, (base, base[1:3].t()))


@program
def in_place() -> Program:
    def f(x: torch.Tensor, i: torch.Tensor) -> Any:
        x.index_put_((i,), torch.ones(2, 4))
        x[1:].add_(x[:-1] * 2)
        return x.clone().relu_().t_()

    return Program(f, (_seeded(6, 4), torch.tensor([0, 3])))


@program
def in_place_training() -> Program:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True))
    return Program(model, (_seeded(6, 4),), train=True)


@program
def odd_arguments() -> Program:
    def f(x: torch.Tensor) -> Any:
        y = x.masked_fill(x > 0, float("-inf")).clamp(min=-1e30, max=float("inf"))
        return (
            y.to(torch.bfloat16, memory_format=torch.preserve_format),
            torch.nan_to_num(x, nan=float("nan")),
            x[..., ::2, None],
        )

    return Program(f, (_seeded(4, 6),))


@program
def low_precision() -> Program:
    def f(x: torch.Tensor) -> Any:
        return x.to(torch.float8_e4m3fn).to(torch.float32), (x.half() * 2).bfloat16(), x.to(torch.uint8)

    return Program(f, (_seeded(4, 6).abs(),))


@program
def autocast() -> Program:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 2))

    def f(x: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(x)

    return Program(f, (_seeded(4, 8),), train=True)


@program
def large_constant() -> Program:
    table = _seeded(100, 100)
    return Program(lambda x: x @ table + torch.tensor([[1.5, -0.0, float("inf")] * 33 + [2.0]]), (_seeded(3, 100),))


@program
def sorting_and_scattering() -> Program:
    def f(x: torch.Tensor, i: torch.Tensor) -> Any:
        values, order = x.sort(dim=1, descending=True)
        return values.cumsum(1), torch.zeros(4, 6).scatter_add(1, order, x), x.gather(1, i), x.topk(2)

    return Program(f, (_seeded(4, 6), _ids(4, 2, below=6)))


@program
def random_numbers() -> Program:
    def f(x: torch.Tensor) -> Any:
        return torch.rand_like(x) + torch.bernoulli(torch.full_like(x, 0.5)), torch.randint(0, 9, (3,)), F.dropout(x)

    return Program(f, (_seeded(4, 6),))


@program
def attention() -> Program:
    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return Program(f, tuple(_seeded(2, 4, 8, 16).requires_grad_() for _ in range(3)), train=True)


@program
def embedding_and_loss() -> Program:
    torch.manual_seed(0)
    table = nn.Embedding(50, 8, padding_idx=1)
    head = nn.Linear(8, 10)

    def f(i: torch.Tensor, target: torch.Tensor) -> Any:
        return F.cross_entropy(head(table(i)).mean(1), target, label_smoothing=0.1)

    return Program(f, (_ids(3, 5, below=50), _ids(3, below=10)), train=True)


@program
def views_of_outputs() -> Program:
    def f(x: torch.Tensor) -> Any:
        y = x.permute(2, 0, 1)
        return y, y[0], torch.as_strided(x + 1, (2, 2), (3, 1), 1), x.unfold(1, 2, 1).sum(), x.expand(2, 2, 3, 4)

    return Program(f, (_seeded(2, 3, 4),))
