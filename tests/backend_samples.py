"""Backends of torch.compile that do as they were told, and programs for them."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import select
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd

from torchsleuth.case.schema import Case, Generated, Stored, Tensor
from torchsleuth.case.stores.store import Store

Then = Callable[[list[Any], fx.GraphModule], Any]


@dataclass
class Boxed:
    """A compiled graph: empties its list, and does as it was told."""

    gm: fx.GraphModule
    then: Then | None = None
    _boxed_call: bool = True

    def __call__(self, inputs: list[Any]) -> Any:
        mine = list(inputs)
        inputs.clear()
        return self.gm(*mine) if self.then is None else self.then(mine, self.gm)


@dataclass
class GraphCompiler:
    """A compiler of graphs after AOT. `compiling` is called first; `then` is what its product does when called."""

    compiling: Callable[[], Any] | None = None
    then: Then | None = None

    def __call__(self, gm: fx.GraphModule, example_inputs: Any) -> Boxed:
        if self.compiling is not None:
            self.compiling()
        return Boxed(gm, self.then)


def aot_backend(compiling: Callable[[], Any] | None = None, then: Then | None = None, **more: Any) -> Any:
    """A backend on AOTAutograd whose forward fails as told. Its backward does not, unless `bw_compiler` is given."""
    compilers = {
        "fw_compiler": GraphCompiler(compiling, then),
        "bw_compiler": GraphCompiler(),
        "inference_compiler": GraphCompiler(compiling, then),
    }
    return aot_autograd(**{**compilers, **more})


def plain_backend(compiling: Callable[[], Any] | None = None, then: Then | None = None) -> Any:
    """A backend that knows nothing of AOT."""

    def backend(gm: fx.GraphModule, example_inputs: Any) -> Any:
        if compiling is not None:
            compiling()
        return gm if then is None else lambda *inputs: then(list(inputs), gm)

    return backend


# ---- ways to fail --------------------------------------------------------------------------------------------


def raises(*_: Any) -> Any:
    raise ZeroDivisionError("the graph divides by zero")


def off_by_one(inputs: list[Any], gm: fx.GraphModule) -> Any:
    first, *rest = gm(*inputs)
    return (first + 1, *rest)


# ---- what is in a store --------------------------------------------------------------------------------------


def listed(store: Path) -> list[tuple[Path, Case]]:
    """Every case of a store and its folder, the oldest first."""
    found = Store.open(str(store))
    return [(Path(entry.path), found.load(entry.id)) for entry in found.entries()]


def only(store: Path) -> Case:
    ((_, case),) = listed(store)
    return case


def inputs_of(case: Case) -> str:
    """Whether a case has the values of its inputs or recipes for them. Each storage that was kept is read."""
    contents = [
        case.storages[value.storage] for value in case.inputs if isinstance(value, Tensor) and value.storage is not None
    ]
    kinds = {type(storage.content) for storage in contents}
    return {frozenset({Stored}): "values", frozenset({Generated}): "recipes"}.get(frozenset(kinds), str(kinds))


def values_of(store: Path, case: Case) -> list[torch.Tensor]:
    """The tensors of a case's inputs, from the bytes on the disk, whose digests are checked on reading."""
    blobs = Store.open(str(store)).blobs
    found = []
    for value in case.inputs:
        assert isinstance(value, Tensor)
        assert value.storage is not None
        storage = case.storages[value.storage]
        assert isinstance(storage.content, Stored)
        data = bytes(blobs.get(storage.content.digest, storage.nbytes).tolist())
        dtype = getattr(torch, value.dtype)
        found.append(torch.frombuffer(bytearray(data), dtype=dtype).as_strided(value.size, value.stride, value.offset))
    return found


# ---- what propagates -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    """How a program ended: with a result, an exception, or a signal."""

    result: Any = None
    error: str | None = None
    message: str = ""
    notes: tuple[str, ...] = ()
    signal: int | None = None


def ended(program: Callable[[], Any]) -> Ended:
    """Run a program in this process."""
    try:
        return Ended(result=program())
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is the answer
        return Ended(None, type(error).__qualname__, str(error), tuple(getattr(error, "__notes__", ())))


_LIMIT = 60.0


def ended_forked(program: Callable[[], Any], interrupt: signal.Signals | None = None) -> Ended:
    """Run a program that may die in a forked child. `interrupt` is sent when the program says that it `hangs`."""
    answers, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        _answer(program, told)
    os.close(told)
    try:
        return _waited(pid, answers, interrupt)
    finally:
        os.close(answers)


_TELL: list[int] = []
_HANGS = b"hangs\n"


def hangs(*_: Any) -> Any:
    """Tell whoever forked this process, and hang."""
    os.write(_TELL[0], _HANGS)
    time.sleep(120)


def _answer(program: Callable[[], Any], told: int) -> None:
    try:
        _TELL[:] = [told]
        faulthandler.disable()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.write(told, pickle.dumps(ended(program)))
    finally:
        os._exit(0)


def _waited(pid: int, answers: int, interrupt: signal.Signals | None) -> Ended:
    said = b""
    until = time.monotonic() + _LIMIT
    with _killed_at_last(pid) as gone:
        while select.select([answers], [], [], max(0.0, until - time.monotonic()))[0]:
            some = os.read(answers, 65536)
            if not some:
                break
            said += some
            if said.startswith(_HANGS) and interrupt is not None:
                time.sleep(0.1)
                os.kill(pid, interrupt)
                interrupt = None
        else:
            raise TimeoutError(f"the child did not end within {_LIMIT} s")
        _, status = os.waitpid(pid, 0)
        gone.append(pid)
    if os.WIFSIGNALED(status):
        return Ended(signal=os.WTERMSIG(status))
    answer: Ended = pickle.loads(said.removeprefix(_HANGS))  # noqa: S301 - from our own child
    return answer


@contextlib.contextmanager
def _killed_at_last(pid: int) -> Iterator[list[int]]:
    gone: list[int] = []
    try:
        yield gone
    finally:
        if not gone:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
