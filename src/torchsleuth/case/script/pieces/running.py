"""Lines of a script that run the graph, compare, and say what was seen."""

from __future__ import annotations

from torchsleuth.case.script.pieces.piece import Piece

SAY = Piece(
    '''
def say(what, words):
    print(f"{what + ':':<10}{words}", flush=True)


def verdict(code, words):
    """The last word on this run, and the exit code for it."""
    say("verdict", words)
    return code


def first_line(error):
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")
''',
    imports=("sys", "traceback"),
)

ALARM = Piece(
    '''
def alarm(seconds):
    """After so many seconds, say that it hangs, show where, and leave."""

    def hung():
        say("seen", f"no result within {seconds:g} s")
        say("verdict", "fails as recorded")
        faulthandler.dump_traceback()
        os._exit(1)

    timer = threading.Timer(seconds, hung)
    timer.daemon = True
    timer.start()
    faulthandler.dump_traceback_later(seconds + 10, exit=True)  # for a hang that holds on to the interpreter
''',
    imports=("faulthandler", "os", "threading"),
    needs=(SAY,),
)

ONE_PROCESS = Piece(
    '''
def one_process(size, *names):
    """Process groups that talk to nobody, so that collectives run here: what they compute is not to be trusted."""
    dist.init_process_group(backend="fake", rank=0, world_size=size, store=FakeStore())
    for name in names:
        if name != dist.group.WORLD.group_name:
            torch._C._distributed_c10d._register_process_group(name, dist.group.WORLD)
    say("note", "collectives run on one process here; their values are not to be trusted")
''',
    imports=(
        "from torch import distributed as dist",
        "from torch.testing._internal.distributed.fake_pg import FakeStore",
    ),
    needs=(SAY,),
)

PACKED = Piece(
    '''
def packed(*text):
    """The state of a generator of random numbers."""
    return torch.frombuffer(bytearray(zlib.decompress(base64.b64decode("".join(text)))), dtype=torch.uint8)
''',
    imports=("base64", "zlib"),
)

RAISED = Piece(
    '''
def chain(error):
    """The exception and those behind it, outermost first."""
    met = []
    while error is not None and error not in met:
        met.append(error)
        error = error.__cause__ or error.__context__ or getattr(error, "inner_exception", None)
    return met


def plain(text):
    """A message without what changes from run to run: addresses, temporary paths, numbers."""
    text = re.sub(r"0x[0-9a-f]+|/[\\w./-]+", "*", text.strip())
    return re.sub(r"\\d+(\\.\\d+)?", "#", text)


def as_recorded(error):
    """Whether one of the recorded types is in the chain, and the first line of the recorded message in what it says."""
    types = {f"{type(one).__module__}.{type(one).__qualname__}".removeprefix("builtins.") for one in chain(error)}
    expected = {name.removeprefix("builtins.") for name in EXPECTED["types"]}
    said = plain(" ".join(f"{type(one).__qualname__}: {one}" for one in chain(error)))
    return (not expected or bool(types & expected)) and plain(EXPECTED["message"]) in said
''',
    imports=("re",),
)

BACKWARD = Piece(
    '''
def backward(result, args):
    """The gradients of all inputs that want one. Each element of the results has a weight of its own in the loss."""
    loss = None
    for one in torch.utils._pytree.tree_leaves(result):
        if not isinstance(one, torch.Tensor) or not one.requires_grad:
            continue
        for part in one.unbind() if one.is_nested else [one]:
            flat = (part if part.layout is torch.strided else part.to_dense()).reshape(-1)
            flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
            weights = torch.arange(flat.numel(), dtype=torch.float64, device=flat.device).mul(0.7).cos()
            term = (flat * weights.to(flat.dtype)).sum() / max(1.0, flat.numel() ** 0.5)
            loss = term if loss is None else loss + term.to(loss.dtype)
    leaves = [arg for arg in args if isinstance(arg, torch.Tensor) and arg.requires_grad]
    if loss is None or not leaves:
        return []
    return list(torch.autograd.grad(loss, leaves, allow_unused=True))
''',
    imports=("torch.utils._pytree",),
)

CLOSE = Piece(
    '''
def differences(compiled, eager, exact=None, path="result"):
    """Where two results differ, as (symptom, words). `exact` is eager's result in float64, or None."""
    if isinstance(eager, (list, tuple)) and isinstance(compiled, (list, tuple)):
        if len(eager) != len(compiled):
            return [("structure", f"{path}: {len(compiled)} items, eager has {len(eager)}")]
        exacts = [*(exact if isinstance(exact, (list, tuple)) else ()), *[None] * len(eager)]
        pairs = enumerate(zip(compiled, eager, exacts))
        return [found for i, (c, e, x) in pairs for found in differences(c, e, x, f"{path}[{i}]")]
    if isinstance(eager, dict) and isinstance(compiled, dict) and eager.keys() == compiled.keys():
        exacts = exact if isinstance(exact, dict) else {}
        return [f for k in eager for f in differences(compiled[k], eager[k], exacts.get(k), f"{path}[{k!r}]")]
    if not isinstance(eager, torch.Tensor) or not isinstance(compiled, torch.Tensor):
        same = type(eager) is type(compiled) and (eager == compiled or eager != eager)
        return [] if same else [("object", f"{path}: {compiled!r}, eager has {eager!r}")]
    for symptom, ours, theirs in (
        ("shape", tuple(compiled.shape), tuple(eager.shape)),
        ("dtype", compiled.dtype, eager.dtype),
        ("layout", compiled.layout, eager.layout),
        ("device", compiled.device, eager.device),
    ):
        if ours != theirs:
            return [(symptom, f"{path}: {symptom} {ours}, eager has {theirs}")]
    return tensor_differences(compiled, eager, exact, path)


def tensor_differences(compiled, eager, exact, path):
    """The same for two tensors of one shape and dtype; None of it if they are as close as rounding allows."""
    a, b = wide(compiled), wide(eager)
    if torch.equal(a, b):
        return []
    if not (eager.is_floating_point() or eager.is_complex()):
        wrong = a != b
        first = tuple(wrong.nonzero()[0].tolist())
        words = f"{path}: {int(wrong.sum())} of {a.numel()} elements differ, first at {first}: "
        return [("integer", words + f"{a[first].item()}, eager has {b[first].item()}")]
    rtol, atol = TOLERANCES.get(eager.dtype, (1e-2, 1e-2))
    finite = a.isfinite() & b.isfinite()
    strange = ~finite & (a != b) & ~(a.isnan() & b.isnan())
    wrong = strange | ~torch.isclose(a, b, rtol=rtol, atol=atol, equal_nan=True)
    if not wrong.any():
        return []
    first = tuple(wrong.nonzero()[0].tolist())
    error = (a - b).abs().nan_to_num(0)
    words = f"{path}: {int(wrong.sum())} of {a.numel()} elements differ, by up to {error.max().item():.3g}; "
    words += f"first at {first}: {a[first].item()}, eager has {b[first].item()}"
    if strange.any():
        return [("nan", words)]
    if isinstance(exact, torch.Tensor) and exact.shape == eager.shape:
        x = wide(exact)
        ours, theirs = ((y - x).abs().nan_to_num(0).max().item() for y in (a, b))
        words += f"; against float64 the errors are {ours:.3g} and {theirs:.3g}"
        if ours <= 4 * theirs:
            return []  # no worse than eager itself
    return [("value", words)]


def wide(tensor):
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.to(torch.float64) if tensor.is_floating_point() else tensor


def in_float64(gm, args):
    """What eager computes in float64, or None where it cannot."""

    def widen(value):
        return value.double() if isinstance(value, torch.Tensor) and value.dtype in TOLERANCES else value

    try:
        return gm.double()(*map(widen, args))
    except Exception:
        return None


TOLERANCES = {
    torch.float64: (1e-7, 1e-7),
    torch.float32: (1.3e-6, 1e-5),
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.complex128: (1e-7, 1e-7),
    torch.complex64: (1.3e-6, 1e-5),
}
'''
)
