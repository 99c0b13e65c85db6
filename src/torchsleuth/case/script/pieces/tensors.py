"""Lines of a script that make memory, and the tensors in it."""

from __future__ import annotations

from torchsleuth.case.script.pieces.piece import Piece

VIEW = Piece(
    '''
def view(memory, dtype, size, stride=None, offset=0, inference=False, **flags):
    """A tensor over some memory: a storage that several tensors may share."""
    if stride is None:
        stride = [math.prod(max(length, 1) for length in size[i + 1 :]) for i in range(len(size))]
    released = memory.nbytes() == 0 and 0 not in size
    if released:  # torch makes no tensor over memory that was given back, but one may lose its memory
        memory.resize_(dtype.itemsize * (1 + offset + sum((n - 1) * step for n, step in zip(size, stride))))
    with torch.inference_mode(inference):
        tensor = torch.empty(0, dtype=dtype, device=memory.device).set_(memory, offset, size, stride)
    if released:
        memory.resize_(0)
    return with_flags(tensor, **flags)


def with_flags(tensor, requires_grad=False, leaf=True, parameter=False, conj=False, neg=False, grad=None):
    """The same tensor, with what else torch knows of it."""
    if grad is not None:
        tensor = with_flags(tensor, requires_grad, leaf, parameter, conj, neg)
        tensor.grad = grad
        return tensor
    if conj:
        tensor = tensor.conj()
    if neg:
        tensor = torch._neg_view(tensor)
    if parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    if requires_grad and not leaf:
        with torch.enable_grad():
            return Computed.apply(torch.zeros((), requires_grad=True), lambda: tensor)
    return tensor.requires_grad_() if requires_grad else tensor


class Computed(torch.autograd.Function):
    """Gives out a tensor as if it had been computed: it needs a gradient, and is neither a leaf nor a view."""

    @staticmethod
    def forward(ctx, source, give):
        return give()

    @staticmethod
    def backward(ctx, *gradients):
        return None, None
''',
    imports=("math",),
)

VIEW_OF = Piece(
    '''
def view_of(base, size, stride, offset=0, requires_grad=False, leaf=True, **flags):
    """A view of another tensor, as autograd knows it."""
    with torch.set_grad_enabled(requires_grad and not leaf):
        tensor = with_flags(base.as_strided(size, stride, offset), **flags)
    return tensor.requires_grad_() if requires_grad and leaf else tensor
''',
    needs=(VIEW,),
)

BYTES = Piece(
    '''
def raw(nbytes, *text):
    """Memory with exactly these bytes."""
    data = bytearray(base64.b64decode("".join(text)))
    assert len(data) == nbytes, f"{len(data)} bytes where {nbytes} were written"
    return torch.frombuffer(data, dtype=torch.uint8).clone().untyped_storage() if data else torch.UntypedStorage(0)
''',
    imports=("base64",),
)

BESIDE = Piece(
    '''
class Beside:
    """The bytes of the larger inputs, in the file that belongs next to this script."""

    def __init__(self, name, case):
        self.path = pathlib.Path(__file__).resolve().with_name(name)
        if not self.path.is_file():
            self.refuse("is not there", "copy it next to the script")
        with open(self.path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            self.start = 8 + size
            try:
                self.header = dict(json.loads(file.read(min(size, 1 << 20))))
            except ValueError:
                self.refuse("is cut short, or no safetensors file", "copy it again")
        if self.header.get("__metadata__", {}).get("case") != case:
            self.refuse("belongs to another script", "copy the one that was written with this script")

    def storage(self, key):
        begin, end = self.header[key]["data_offsets"]
        storage = torch.UntypedStorage(end - begin)
        with open(self.path, "rb") as file:
            file.seek(self.start + begin)
            if end > begin:
                space = (ctypes.c_char * (end - begin)).from_address(storage.data_ptr())
                if file.readinto(space) != end - begin:
                    self.refuse("is cut short", "copy it again")
        return storage

    def refuse(self, what, remedy):
        raise SystemExit(f"{self.path} {what}: it holds inputs of this script, and nothing else will do; {remedy}")
''',
    imports=("ctypes", "json", "pathlib"),
)

MADE = Piece(
    '''
def made(nbytes, how, dtype, low=0, high=1, seed=0):
    """Memory that is filled by a recipe; always the same for the same recipe."""
    storage = torch.UntypedStorage(nbytes).fill_(0)
    dtype = {
        torch.complex32: torch.float16,
        torch.complex64: torch.float32,
        torch.complex128: torch.float64,
        torch.qint8: torch.int8,
        torch.quint8: torch.uint8,
        torch.qint32: torch.int32,
    }.get(dtype, dtype)
    whole = str(dtype).removeprefix("torch.").removeprefix("u") in ("int8", "int16", "int32", "int64")
    if not (dtype.is_floating_point or dtype == torch.bool or whole):
        dtype = torch.uint8
    count = nbytes // dtype.itemsize
    into = torch.empty(0, dtype=dtype).set_(storage, 0, (count,), (1,))
    generator = torch.Generator().manual_seed(seed)
    wide = torch.int64 if whole else torch.float64
    drawn = how in ("uniform", "normal")
    if drawn and dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        getattr(into, f"{how}_")(float(low), float(high), generator=generator)
        return storage
    most = 1 << 20  # elements at a time: they may be wider than they are kept
    for begin in range(0, max(count - most, 1), most):
        end = begin + most if count - begin > 2 * most else count
        if drawn:
            values = getattr(torch.empty(end - begin), f"{how}_")(float(low), float(high), generator=generator)
        elif how == "integers":
            values = torch.randint(int(low), int(high), (end - begin,), generator=generator, dtype=torch.int64)
        elif how == "constant":
            values = torch.full((end - begin,), low, dtype=wide)
        else:
            values = torch.arange(begin, end, dtype=wide).mul_(high).add_(low)
        into[begin:end].copy_(values)
    return storage
'''
)

META = Piece(
    '''
def no_memory(dtype, size, stride, **flags):
    """A tensor on the meta device: it has a shape and no values."""
    return with_flags(torch.empty_strided(size, stride, dtype=dtype, device="meta"), **flags)
''',
    needs=(VIEW,),
)

SPARSE = Piece(
    '''
def sparse(layout, parts, size, coalesced=False, **flags):
    """A sparse tensor from its indices and values."""
    if layout is torch.sparse_coo:
        tensor = torch.sparse_coo_tensor(*parts, size, is_coalesced=coalesced, check_invariants=True)
    else:
        tensor = torch.sparse_compressed_tensor(*parts, size, layout=layout, check_invariants=True)
    return with_flags(tensor, **flags)
''',
    needs=(VIEW,),
)

QUANTISED = Piece(
    '''
def quantised(memory, dtype, size, stride=None, offset=0, quantiser=None, **flags):
    """A quantised tensor over some memory."""
    scheme, scales, zero_points, axis = quantiser
    if axis is None:
        tensor = torch._empty_affine_quantized([0], scale=scales[0], zero_point=int(zero_points[0]), dtype=dtype)
    else:
        floats = scheme is torch.per_channel_affine_float_qparams
        tensor = torch._empty_per_channel_affine_quantized(
            [0] * len(size),
            scales=torch.tensor(scales, dtype=torch.float32 if floats else torch.float64),
            zero_points=torch.tensor(zero_points, dtype=torch.float32 if floats else torch.int64),
            axis=axis,
            dtype=dtype,
        )
    if stride is None:
        stride = [math.prod(max(length, 1) for length in size[i + 1 :]) for i in range(len(size))]
    return with_flags(tensor.set_(memory, offset, size, stride), **flags)
''',
    imports=("math",),
    needs=(VIEW,),
)
