"""Lines of a script that build a graph node by node."""

from __future__ import annotations

from torchsleuth.case.script.pieces.piece import Piece

BUILDER = Piece(
    '''
class Builder:
    """A graph whose nodes are named by assignment: `g.relu = call(aten.relu.default, g.x)` adds the node "relu"."""

    def __init__(self):
        vars(self)[""] = torch.fx.Graph()  # under a name that no node has

    def __setattr__(self, name, made):
        op, target, args, kwargs, *meta = made
        node = vars(self)[""].create_node(op, name if target is None else target, args, kwargs, name=name)
        node.name = name
        node.meta.update(*meta)
        vars(self)[name] = node

    __setitem__ = __setattr__

    def __getitem__(self, name):
        return vars(self)[name]


def finished(g, name="GraphModule", attributes=(), meta=()):
    """The graph as a module that owns `attributes`."""
    gm = torch.fx.GraphModule(dict(attributes), vars(g)[""], name)
    gm.meta.update(meta)
    return gm


def placeholder(target=None, *default, **meta):
    return "placeholder", target, default, {}, meta


def attribute(target):
    return "get_attr", target, (), {}


def call(function, /, *args, **kwargs):
    return "call_function", function, args, kwargs


def method(name, /, *args, **kwargs):
    return "call_method", name, args, kwargs


def module(name, /, *args, **kwargs):
    return "call_module", name, args, kwargs


def output(*results):
    return "output", "output", results, {}


def note(node, **meta):
    """What else the compiler reads from the node's `meta`."""
    node.meta.update(meta)
'''
)

MODULES = Piece(
    '''
def torch_module(kind, attributes=(), parameters=(), buffers=(), children=(), transient=()):
    """A module of torch.nn with just these parts; its constructor does not run."""
    made = kind.__new__(kind)
    torch.nn.Module.__init__(made)
    vars(made).update(attributes)
    made._parameters.update(parameters)
    made._buffers.update(buffers)
    made._modules.update(children)
    made._non_persistent_buffers_set.update(transient)
    return made
'''
)

GENERATOR = Piece(
    '''
def generator(device, state):
    """A generator of random numbers that goes on where it was."""
    made = torch.Generator(device)
    made.set_state(torch.frombuffer(bytearray(base64.b64decode(state)), dtype=torch.uint8))
    return made
''',
    imports=("base64",),
)
