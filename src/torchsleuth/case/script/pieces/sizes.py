"""Lines of a script that make tensors without values, and symbolic sizes."""

from __future__ import annotations

from torchsleuth.case.script.pieces.piece import Piece
from torchsleuth.case.script.pieces.tensors import VIEW

AS_FAKE = Piece(
    '''
def as_fake(value):
    """A tensor without its values, as compilers get it. Any other value as it is."""
    return fake_mode().from_tensor(value, static_shapes=True) if isinstance(value, torch.Tensor) else value
'''
)

FAKES = Piece(
    '''
class Propagate(torch.fx.Interpreter):
    """Says of each node what it produces, in `meta["val"]`: tensors without values."""

    def run_node(self, node):
        if node.op != "placeholder" and "val" in node.meta:
            return node.meta["val"]  # it is known already, with symbols of its own
        result = super().run_node(node)
        node.meta["val"] = torch.fx.node.map_aggregate(result, self.seen)
        return result

    def seen(self, value):
        if not isinstance(value, torch.Tensor):
            return value
        return snapshot_fake(value if isinstance(value, FakeTensor) else as_fake(value))


def propagate(gm, fakes):
    """Describe every node of the graph, and of the graphs inside it."""
    mode = fake_mode()
    mode.allow_non_fake_inputs = True  # constants of the graph
    with mode, enable_python_dispatcher():
        for child in gm.modules():
            if isinstance(child, torch.fx.GraphModule) and child is not gm:
                Propagate(child).run(*(node.meta["val"] for node in child.graph.find_nodes(op="placeholder")))
        Propagate(gm).run(*fakes)
    mode.allow_non_fake_inputs = False
''',
    imports=(
        "from torch._dispatch.python import enable_python_dispatcher",
        "from torch._subclasses.fake_tensor import FakeTensor",
        "from torch.fx.experimental.proxy_tensor import snapshot_fake",
    ),
    needs=(AS_FAKE,),
)

FAKE_MODE = Piece(
    '''
@functools.cache
def fake_mode():
    """The world in which tensors have no values."""
    return FakeTensorMode(shape_env=symbols())
''',
    imports=("functools", "from torch._subclasses.fake_tensor import FakeTensorMode"),
)


def static(settings: str) -> Piece:
    """The world without symbolic sizes. `settings` are arguments of its ShapeEnv, as source."""
    return Piece(
        f'''
def symbols():
    """All sizes are numbers."""
    return ShapeEnv({settings})
''',
        imports=("from torch.fx.experimental.symbolic_shapes import ShapeEnv",),
        needs=(FAKE_MODE,),
    )


FAKE = Piece(
    '''
@functools.cache
def size_of(expr):
    """A symbolic size as the compiler knows it; a number as it is."""
    if isinstance(expr, (int, sympy.Integer)):
        return int(expr)
    env = fake_mode().shape_env
    backed = expr.free_symbols <= env.backed_var_to_val.keys()
    return torch.SymInt(SymNode(expr, env, int, None if backed else _NO_HINT))


@functools.cache
def symbolic(kind, expr, hinted=True):
    """A symbolic number (`torch.SymInt`, `torch.SymFloat`) or condition (`torch.SymBool`)."""
    plain = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[kind]
    return kind(SymNode(sympy.sympify(expr), fake_mode().shape_env, plain, None if hinted else _NO_HINT))


def fake(dtype, size, stride, offset=0, device="cpu", memory=None, bases={}, **flags):
    """A tensor without values whose sizes may be symbolic. Those with the same `memory` share it."""
    size, stride, offset = [size_of(one) for one in size], [size_of(one) for one in stride], size_of(offset)
    mode = fake_mode()
    with mode, torch.no_grad(), mode.shape_env.suppress_guards(), mode.shape_env.ignore_fresh_unbacked_symbols():
        base = bases.get(memory)
        if base is not None:
            tensor = torch.as_strided(base, size, stride, offset)
        elif isinstance(offset, int) and offset == 0:
            tensor = torch.empty_strided(size, stride, dtype=dtype, device=device)
        else:
            room = offset + sum((length - 1) * step for length, step in zip(size, stride)) + 1
            tensor = torch.as_strided(torch.empty([room], dtype=dtype, device=device), size, stride, offset)
        if memory is not None:
            bases.setdefault(memory, tensor)
        return with_flags(tensor, **flags)


def with_item(tensor, number):
    """The same tensor without values, and the symbolic number that is in it."""
    tensor.item_memo = number
    return tensor
''',
    imports=("functools", "sympy", "from torch.fx.experimental.sym_node import _NO_HINT, SymNode"),
    needs=(FAKE_MODE, VIEW),
)

SYMBOLS = Piece(
    '''
def know(env, symbol, hint=None, bounds=None, source=None, size_like=False, given=False, override=None, observed=None):
    """Tell the environment of a symbol: the value it had, between which bounds it lies, what it stands for."""
    number = int(symbol.name.lstrip("szuf"))
    if hint is not None:
        env.backed_var_to_val[symbol] = sympy.sympify(hint)
        env.unique_ids.add(number)
    else:
        env.var_to_stack[symbol] = CapturedTraceback(None)
        counter = "unbacked_symint_counter" if symbol.is_integer else "unbacked_symfloat_counter"
        setattr(env, counter, max(getattr(env, counter), number + 1))
    if bounds is not None:
        env.var_to_range[symbol] = ValueRanges(*map(sympy.sympify, bounds))
        env.var_to_range_sloc[symbol] = ValueRangesSLoc(SLoc(None, None), SLoc(None, None))
    if source is not None:
        env.var_to_sources[symbol] = [ConstantSource(source)]
    if size_like:
        env.size_like.add(symbol)
    if given:
        env.unbacked_inputs.add(symbol)
    if override is not None:
        env.var_to_hint_override[symbol] = override
    if observed is not None:
        env.real_tensor_prop_unbacked_vals[symbol] = sympy.sympify(observed)


def finish(env, axioms=None):
    """Let the environment draw its conclusions from what it was told."""
    waiting = [one.expr for asserts in env.deferred_runtime_asserts.values() for one in asserts]
    env.num_deferred_runtime_asserts = len(waiting)
    forget(env)
    if axioms is not None:
        env.axioms.update((expr, sympy.sympify(truth)) for expr, truth in axioms.items())
    else:
        for expr in (*(guard.expr for guard in env.guards), *waiting):
            env.axioms.update(env.get_implications(env.simplify(expr)))
    forget(env)
    return env


def forget(env):
    """What the environment has derived from its facts is to be derived anew."""
    env._update_version_counter()
    env._version_counter += 1
    env._replacements_version_counter += 1
''',
    imports=(
        "sympy",
        "from torch._dynamo.source import ConstantSource",
        "from torch._guards import SLoc",
        "from torch.fx.experimental.symbolic_shapes import ShapeEnv, ValueRangesSLoc",
        "from torch.utils._sympy.value_ranges import ValueRanges",
        "from torch.utils._traceback import CapturedTraceback",
    ),
    needs=(FAKE,),
)

KNOWN_FAKES = Piece(
    '''
def known(args, fakes):
    """The inputs as Dynamo hands them on: tensors are real, but known by their fakes; sizes are symbolic."""
    for arg, fake in zip(args, fakes):
        if isinstance(arg, torch.Tensor):
            fake_mode().fake_tensor_converter.set_tensor_memo(arg, fake)
    return [arg if isinstance(arg, torch.Tensor) else fake for arg, fake in zip(args, fakes)]
'''
)
