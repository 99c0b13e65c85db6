"""Files that a stranger might send, tens of thousands of them: each is refused in time, or harmless.

Three kinds. Bytes that were changed on the way: every one has to be refused, since every byte is covered by a digest or
has one form only. Cases whose structure was changed and whose digest is right again: refused by what they say, or, if
the change makes sense by chance, read as a case like any other, graph and all. And attacks, put together by hand. What
they have in common: nothing takes long or much memory, no other error than a `CaseError` comes out, and nothing that a
case names is imported or run. The names to be tempted by lead to a module that would leave a trace.
"""

from __future__ import annotations

import base64
import copy
import random
import resource
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from case_samples import checked, rich_case, small_case
from torchsleuth.case import schema
from torchsleuth.case.format.reading import decode, encode, seal, unseal
from torchsleuth.case.graphs.graph import GraphReader
from torchsleuth.case.recording import Recording
from torchsleuth.case.stores.archive import Archive, pack, unpack
from torchsleuth.case.stores.store import Store
from torchsleuth.config import After
from torchsleuth.errors import CaseError

# How many samples of each kind are read: `Watch` counts them.
CHANGED_BYTES = 11_000
CHANGED_ARCHIVES = 2_000
CHANGED_TENSORS = 1_000
CHANGED_STRUCTURES = 8_000

SECONDS = 2.0
MEMORY = 2**30
"""How much more than before they may have mapped, all together."""

CANARY = "sleuth_canary"
TEMPTING = [
    f"{CANARY}.boom",
    CANARY,
    "os.system",
    "builtins.eval",
    "builtins.exec",
    "builtins.__import__",
    "builtins.getattr",
    "builtins.open",
    "subprocess.run",
    "importlib.import_module",
    "torch.load",
    "torch.save",
    "torch.hub.load",
    "torch.ops.load_library",
    "torch.ops.aten.from_file.default",
    "torch.jit.load",
    "torch.package.PackageImporter",
    "torch.utils.cpp_extension.load_inline",
    "torch.Tensor.apply_",
    "operator.methodcaller",
    "operator.attrgetter",
    "pickle.loads",
    "ctypes.CDLL",
    "__reduce_ex__",
    "__class__.__base__.__subclasses__",
    f"x\nimport {CANARY}\n",
    f"x; import {CANARY}",
    f"__import__('{CANARY}')",
    f"x):\n    __import__('{CANARY}').boom()\ndef f(",
    f"'+__import__('{CANARY}').boom()+'",
    "../../../etc/passwd",
    "/etc/passwd",
    "\ud7ff\0\uffff",
    "A" * 100_000,
    "lambda",
    "",
    "None",
    "self",
    "forward",
    "b3-" + "0" * 64,
]
NUMBERS = [
    0,
    1,
    -1,
    2,
    3,
    7,
    64,
    127,
    2**31,
    2**32,
    2**53,
    2**62,
    2**63 - 1,
    2**63,
    2**64,
    -(2**63),
    10**40,
    0.5,
    -0.0,
    1e308,
]


class Canary:
    """A module that leaves a trace when it is imported or called."""

    def __init__(self, folder: Path) -> None:
        self.trace = folder / "trace"
        touch = f"open({str(self.trace)!r}, 'a').write('boom\\n')\n"
        (folder / f"{CANARY}.py").write_text(f"{touch}def boom(*args, **kwargs):\n    {touch}")

    @property
    def sang(self) -> bool:
        return self.trace.exists() or CANARY in sys.modules


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Canary:
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return Canary(folder)


@pytest.fixture
def watched(canary: Canary, tmp_path: Path) -> Iterator[Watch]:
    watch = Watch(canary, tmp_path)
    try:
        yield watch
    finally:
        watch.finish()


class Watch:
    """Runs one sample after the other, and sees to what must hold of each of them."""

    def __init__(self, canary: Canary, folder: Path) -> None:
        self.canary = canary
        self.folder = folder
        self.said: Counter[str] = Counter()
        self.samples = 0
        self.slowest = 0.0
        self._limits = resource.getrlimit(resource.RLIMIT_AS)
        pages = Path("/proc/self/statm")
        if pages.exists():
            used = int(pages.read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, self._limits[1]))

    def run(self, sample: bytes, read: Callable[[], object]) -> bool:
        """Read a sample; whether it was refused. Anything but a `CaseError` is told, with the sample in a file."""
        self.samples += 1
        begin = time.process_time()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                read()
            refused = False
        except CaseError as error:
            self.said[type(error).__name__] += 1
            refused = True
            if not error.what or not error.cause or not error.remedy or isinstance(error.__cause__, MemoryError):
                raise self._failed(sample, f"it was refused for no good reason: {error}") from error
        except BaseException as error:
            raise self._failed(sample, f"it raised {type(error).__name__}: {error}") from error
        spent = time.process_time() - begin
        self.slowest = max(self.slowest, spent)
        if spent > SECONDS:
            raise self._failed(sample, f"it took {spent:.1f} s")
        if self.canary.sang:
            raise self._failed(sample, "it had something imported or run")
        return refused

    def refuse(self, sample: bytes, read: Callable[[], object]) -> None:
        if not self.run(sample, read):
            raise self._failed(sample, "it was taken for good")

    def _failed(self, sample: bytes, what: str) -> AssertionError:
        path = self.folder / "sample"
        path.write_bytes(sample)
        return AssertionError(f"{what}; the sample is {path}: {sample[:2000]!r}")

    def finish(self) -> None:
        resource.setrlimit(resource.RLIMIT_AS, self._limits)
        assert not self.canary.sang


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store")


def recorded(store: Store) -> schema.Case:
    """A real graph with symbolic sizes, an index, a view and a constant."""

    def program(x: torch.Tensor, index: torch.Tensor) -> list[torch.Tensor]:
        rows = torch.tensor([0.5, 1.5, 2.5, 3.5])[index]
        y = (x.unsqueeze(0) * rows.unsqueeze(1)[:, : x.shape[0]]).sum(1)
        return [y, torch.where(y > 1, y, 0.0).to(torch.float64), x.view(-1)[1:]]

    inputs = (torch.rand(5), torch.tensor([0, 3, 1, 2, 2]))
    gm = make_fx(program, tracing_mode="symbolic")(*inputs)
    return Recording(gm, store.blobs).case(inputs, schema.Compiler(After.AOT, "inductor"), stable=True)


# ---- changed bytes -----------------------------------------------------------------------------------------


def changed_bytes(data: bytes, rng: random.Random) -> bytes:
    """The bytes with one thing wrong: a bit, a byte, a piece missing, doubled, moved, or something put in."""
    new = bytearray(data)
    at = rng.randrange(len(data))
    length = rng.choice((1, 2, 4, 16, 200))
    match rng.randrange(9):
        case 0 | 1:
            new[at] ^= 1 << rng.randrange(8)
        case 2:
            new[at] = rng.randrange(256)
        case 3:
            del new[at:]
        case 4:
            del new[at : at + length]
        case 5:
            new[at:at] = new[at : at + length]
        case 6:
            new[at:at] = rng.randbytes(length)
        case 7:
            new[at : at + length] = rng.choice((b"\xff", b"\0", b"9", b"[", b'"', b"{", b" ")) * length
        case _:
            other = rng.randrange(len(data))
            new[at], new[other] = new[other], new[at]
    return bytes(new)


def test_a_case_with_changed_bytes_is_refused(watched: Watch, store: Store) -> None:
    rng = random.Random(1)
    originals = [encode(small_case()), encode(rich_case()), encode(recorded(store))]
    while watched.samples < CHANGED_BYTES:
        original = rng.choice(originals)
        sample = changed_bytes(original, rng)
        if sample != original:
            watched.refuse(sample, lambda sample=sample: decode(sample))  # type: ignore[misc]
    assert len(watched.said) >= 2


def test_an_archive_with_changed_bytes_is_refused(watched: Watch, store: Store, tmp_path: Path) -> None:
    rng = random.Random(2)
    store.save(recorded(store), "real")
    original = pack(store, "real", tmp_path / "real.sleuth.zip").read_bytes()
    path = tmp_path / "changed.sleuth.zip"

    def read() -> None:
        archive = Archive.open(path)
        for storage in archive.case.storages:
            if isinstance(storage.content, schema.Stored):
                archive.blobs.get(storage.content.digest, storage.nbytes)

    while watched.samples < CHANGED_ARCHIVES:
        sample = changed_bytes(original, rng)
        if sample != original:
            path.write_bytes(sample)
            watched.refuse(sample, read)


def test_a_tensor_with_changed_bytes_is_refused(watched: Watch, store: Store) -> None:
    rng = random.Random(3)
    digest = store.blobs.put(torch.arange(100).untyped_storage())
    path = Path(store.files.path(f"tensors/{digest}.safetensors"))
    original = path.read_bytes()
    while watched.samples < CHANGED_TENSORS:
        sample = changed_bytes(original, rng)
        if sample[128:] != original[128:]:
            path.write_bytes(sample)
            watched.refuse(sample, lambda: store.blobs.get(digest, 800))


# ---- changed structure, right digest -----------------------------------------------------------------------


def place(document: Any, rng: random.Random) -> tuple[Any, ...]:
    """The way to something in a document, anything in it."""
    path: tuple[Any, ...] = ()
    while isinstance(document, (dict, list)) and document and (not path or rng.random() < 0.85):
        key = rng.choice(list(document)) if isinstance(document, dict) else rng.randrange(len(document))
        path, document = (*path, key), document[key]
    return path


def at(document: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        document = document[key]
    return document


def strange(rng: random.Random, document: Any) -> Any:
    """Something to put where something else was."""
    match rng.randrange(9):
        case 0 | 1:
            return rng.choice(NUMBERS)
        case 2 | 3:
            return rng.choice(TEMPTING)
        case 4:
            return rng.choice(([], {}, None, True, [[]], [None] * 1000, "bool", "cuda:1", "float8_e4m3fn"))
        case 5:
            return rng.choice(
                (
                    {"is": "function", "name": rng.choice(TEMPTING)},
                    {"is": "node", "name": rng.choice(("x", "y", "output", "nobody"))},
                    {"is": "module", "type": rng.choice((f"{CANARY}.Boom", "torch.nn.modules.linear.Linear"))},
                    {"is": "noticed", "type": CANARY, "reason": "boom"},
                    {"is": "bytes", "data": base64.b64encode(b"\x80\x04.").decode()},
                    {"is": "fake", "dtype": "float32", "size": [2**40, 2**20], "stride": [1, 1]},
                    {"is": "tensor", "dtype": "float32", "size": [2**62], "stride": [0], "storage": 0},
                    {"is": "torch", "name": rng.choice(TEMPTING)},
                )
            )
        case 6:
            value: Any = 1
            for _ in range(rng.choice((3, 40, 110))):
                value = {"is": "tuple", "items": [value]}
            return value
        case 7:
            value = "s0"
            for _ in range(rng.choice((2, 40, 110))):
                value = [rng.choice(("Mul", "Pow", "FloorDiv", "eval", "Add")), [value, rng.choice(NUMBERS)]]
            return value
        case _:
            return copy.deepcopy(at(document, place(document, rng)))


def restructured(original: bytes, rng: random.Random) -> bytes:
    """A document with a few things in it changed."""
    document = msgspec.json.decode(original)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        path = place(document, rng)
        parent, key, value = at(document, path[:-1]), path[-1], at(document, path)
        match rng.randrange(8):
            case 0:
                del parent[key]
            case 1 if isinstance(parent, list):
                parent.insert(key, copy.deepcopy(value))
            case 2 if isinstance(parent, list):
                other = rng.randrange(len(parent))
                parent[key], parent[other] = parent[other], parent[key]
            case 3 if isinstance(value, (int, float)) and not isinstance(value, bool):
                parent[key] = value + rng.choice((-1, 1, 2**31, -(2**31)))
            case 4 if isinstance(value, str):
                parent[key] = rng.choice((rng.choice(TEMPTING), value + "x", value[:-1], value.upper()))
            case 5 if isinstance(value, dict):
                value[rng.choice((*TEMPTING[:5], "is", "name", "meta", "value"))] = strange(rng, document)
            case _:
                parent[key] = strange(rng, document)
    return msgspec.json.encode(document)


def test_a_case_with_changed_structure_is_refused_or_harmless(watched: Watch, store: Store) -> None:
    rng = random.Random(4)
    store.blobs.put(torch.zeros(6).untyped_storage())
    originals = [bytes(unseal(encode(case)).body) for case in (small_case(), rich_case(), recorded(store))]
    good: list[bytes] = []
    while watched.samples < CHANGED_STRUCTURES:
        sample = seal(restructured(rng.choice(originals), rng), rng.choice((1, 1, 1, 1, 2, 0)))
        if not watched.run(sample, lambda sample=sample: read_twice(sample)):  # type: ignore[misc]
            good.append(sample)
    assert CHANGED_STRUCTURES // 20 < len(good) < CHANGED_STRUCTURES // 2
    refused = sum(watched.run(sample, lambda sample=sample: load(decode(sample), store)) for sample in good)  # type: ignore[misc]
    assert watched.samples == CHANGED_STRUCTURES + len(good)
    assert 0 < refused < len(good)


def read_twice(sample: bytes) -> None:
    case = decode(sample)
    assert decode(encode(case)) == case


def load(case: schema.Case, store: Store) -> None:
    """Everything that opening a case does short of running it."""
    reader = GraphReader(case, store.blobs)
    gm = reader.read()
    reader.inputs()
    assert len(reader.examples(gm)) == len(case.inputs)


# ---- attacks -----------------------------------------------------------------------------------------------


def with_node(**fields: Any) -> Any:
    """The small case with one node more, as a document."""
    document = msgspec.json.decode(msgspec.json.encode(small_case()))
    document["graph"]["nodes"].insert(
        1, {"name": "evil", "op": "call_function", "args": [{"is": "node", "name": "x"}], **fields}
    )
    return document


def tempting_cases(name: str) -> Iterator[Any]:
    """Every place where a case names something that could be looked up, imported or run."""
    for op in ("call_function", "call_method", "call_module", "get_attr", "placeholder"):
        yield with_node(op=op, target=name)
    yield with_node(target="torch.ops.aten.mul.Tensor", args=[{"is": "function", "name": name}])
    yield with_node(target="torch.ops.higher_order.cond", args=[{"is": "function", "name": name}])
    yield with_node(target="builtins.getattr", args=[{"is": "node", "name": "x"}, name])
    yield with_node(target="torch.ops.aten.mul.Tensor", kwargs=[{"name": name, "value": 1}])
    yield with_node(target="torch.ops.aten.mul.Tensor", meta={"val": {"is": "module", "type": name}})
    yield with_node(name=name, target="torch.ops.aten.neg.default")
    document = with_node(op="call_module", target="m")
    document["graph"]["attributes"] = [{"name": "m", "value": {"is": "module", "type": name}}]
    yield document
    document = with_node(op="get_attr", target="m", args=[])
    document["graph"]["attributes"] = [
        {"name": name, "value": 1},
        {"name": "m", "value": {"is": "function", "name": name}},
    ]
    yield document
    document = with_node(target=name)
    document["code"] = [{"kind": "python op", "name": name, "module": CANARY, "source": f"import {CANARY}"}]
    yield document
    document = with_node(
        target="torch.ops.aten.neg.default", meta={"original_aten": name, "source_fns": [[name, name]]}
    )
    document["graph"]["name"] = name
    document["state"] = {"config": [{"module": CANARY, "name": name, "value": 1}]}
    document["compiler"]["backend"] = name
    yield document


def test_nothing_that_a_case_names_is_imported_or_run(watched: Watch, store: Store) -> None:
    store.blobs.put(torch.zeros(6).untyped_storage())
    refused = 0
    done = 0
    for name in TEMPTING:
        for document in tempting_cases(name):
            sample = seal(msgspec.json.encode(document))
            refused += watched.run(sample, lambda sample=sample: load(decode(sample), store))  # type: ignore[misc]
            done += 1
    assert refused > 0.85 * done
    assert not (Path.cwd() / "trace").exists()


def test_a_case_that_really_calls_a_function_of_the_canary_is_refused(watched: Watch, store: Store) -> None:
    """The canary can sing: only reading a case never makes it."""
    store.blobs.put(torch.zeros(6).untyped_storage())
    sample = seal(msgspec.json.encode(with_node(target=f"{CANARY}.boom")))
    watched.refuse(sample, lambda: load(decode(sample), store))
    __import__(CANARY)
    assert watched.canary.sang
    sys.modules.pop(CANARY)
    watched.canary.trace.unlink()


COSTLY = [
    # (operator, arguments): what costs memory or time, or has an effect, when it is called, be it on fakes
    ("aten.mul.left_t", [{"is": "list", "items": [0]}, 2**32]),
    ("aten.replace.default", ["a" * 100_000, "a", "b" * 100_000]),
    ("aten.pow.int", [10, 10**6]),
    ("aten.manual_seed.default", [7]),
    ("aten.warn.default", ["gotcha"]),
    ("aten.tensor_split.sections", [{"is": "node", "name": "x"}, 40_000]),
    ("aten.set_grad_enabled.default", [False]),
    ("aten.arange.default", [2**50]),
    ("aten.repeat.default", [{"is": "node", "name": "x"}, {"is": "list", "items": [2**20, 2**20]}]),
]


@pytest.mark.parametrize(("operator", "args"), COSTLY, ids=[name for name, _ in COSTLY])
def test_no_operator_is_called_that_would_cost_much_or_change_something(
    watched: Watch, store: Store, operator: str, args: list[Any]
) -> None:
    store.blobs.put(torch.zeros(6).untyped_storage())
    fake = {"is": "fake", "dtype": "float32", "size": [2, 3], "stride": [3, 1]}
    sample = seal(msgspec.json.encode(with_node(target=f"torch.ops.{operator}", args=args, meta={"val": fake})))
    before = torch.get_rng_state(), torch.is_grad_enabled()
    watched.run(sample, lambda: load(decode(sample), store))
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == torch.is_grad_enabled()


def nested(start: bytes, end: bytes, times: int) -> bytes:
    return start * times + b"1" + end * times


def huge_bodies() -> Iterator[bytes]:
    """Counts and depths that nothing sensible has."""
    body = bytes(unseal(encode(small_case())).body)
    argument = b'"args":[{"is":"node","name":"x"},2.0]'
    assert argument in body
    for depth in (500, 5_000, 200_000):
        for start, end in (
            (b'{"is":"list","items":[', b"]}"),
            (b'{"is":"dict","items":[[1,', b"]]}"),
            (b'{"is":"slice","start":', b"}"),
            (b'{"is":"symbolic","type":"int","expr":["Mul",[2,', b"]]}"),
            (b'{"is":"graph","nodes":[{"name":"o","op":"output","target":"output","args":[', b"]}]}"),
            (b'{"is":"module","type":"m.M","children":[{"name":"a","value":', b"}]}"),
            (b'{"is":"tensor","dtype":"int8","size":[],"storage":0,"base":', b"}"),
            (b'{"is":"tensor","dtype":"int8","size":[],"layout":"sparse_coo","parts":[', b"]}"),
            (b"[", b"]"),
            (b'{"a":', b"}"),
        ):
            yield body.replace(argument, b'"args":[%s]' % nested(start, end, depth))
        chain = b'{"name":"a","target":"a","origins":[' * depth + b"]}" * depth
        yield body.replace(argument, argument + b',"meta":{"from_node":[%s]}' % chain, 1).replace(
            b',"meta":{"val"', b',"x":{"val"', 1
        )
    many = b",".join([b"0"] * 2_000_000)
    yield body.replace(argument, b'"args":[%s]' % many)
    yield body.replace(argument, b'"args":[{"is":"list","items":[%s]}]' % many)
    yield body.replace(argument, b'"args":[{"is":"fake","dtype":"int8","size":[%s],"stride":[%s]}]' % (many, many))
    yield body.replace(argument, b'"args":[%s]' % (b"9" * 2_000_000))
    yield body.replace(argument, b'"args":[1e%s]' % (b"9" * 1000))
    yield body.replace(argument, b'"args":[{"is":"torch","name":"%s"}]' % (b"x" * 20_000_000))
    yield body.replace(b'"name":"y"', b'"name":"%s"' % (b"y" * 20_000_000))
    yield body.replace(b'"nbytes":24', b'"nbytes":%d' % 2**63)
    yield body.replace(
        b'"size":[2,3],"stride":[3,1],"storage":0', b'"size":[%d,%d],"stride":[0,0],"storage":0' % (2**62, 2**62)
    )
    yield body.replace(
        b'"size":[2,3],"stride":[3,1],"storage":0', b'"size":[%s],"stride":[%s],"storage":0' % (many, many)
    )


def test_huge_counts_and_depths_are_refused(watched: Watch) -> None:
    original = bytes(unseal(encode(small_case())).body)
    for body in huge_bodies():
        assert body != original
        sample = seal(body)
        watched.refuse(sample, lambda sample=sample: decode(sample))  # type: ignore[misc]
        sample = seal(body, 2)  # of a newer version, an unknown thing may be left out, however large
        watched.run(sample, lambda sample=sample: decode(sample))  # type: ignore[misc]


def test_a_storage_that_claims_to_be_huge_costs_nothing(watched: Watch, store: Store, tmp_path: Path) -> None:
    """Covers: U9"""
    digest = store.blobs.put(torch.zeros(6).untyped_storage())
    for nbytes in (25, 2**33, 2**50, 2**63 - 1):
        document = msgspec.json.decode(msgspec.json.encode(small_case()))
        document["storages"][0] = {"nbytes": nbytes, "content": {"is": "stored", "digest": digest}}
        sample = seal(msgspec.json.encode(document))
        path = tmp_path / "case.json"
        path.write_bytes(sample)
        watched.refuse(sample, lambda sample=sample: load(decode(sample), store))  # type: ignore[misc]
        watched.refuse(sample, lambda sample=sample: store.save_bytes(sample, decode(sample)))  # type: ignore[misc]
        watched.refuse(sample, lambda path=path: checked(store, path))  # type: ignore[misc]


def test_an_archive_is_unpacked_in_full_or_not_at_all(watched: Watch, store: Store, tmp_path: Path) -> None:
    rng = random.Random(5)
    store.save(recorded(store), "real")
    original = pack(store, "real", tmp_path / "real.sleuth.zip").read_bytes()
    other = Store.open(tmp_path / "other")
    path = tmp_path / "changed.sleuth.zip"
    for _ in range(200):
        sample = changed_bytes(original, rng)
        if sample != original:
            path.write_bytes(sample)
            watched.refuse(sample, lambda: unpack(path, other))
    assert other.entries() == []
