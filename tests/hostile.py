"""Backends that do to a process what a compiler should not, and queries that use them.

query("segfault")            a query whose compiled graph dies
query("right", size=8)       one that has nothing wrong with it
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import fx

from torchsleuth.case import schema
from torchsleuth.case.schema import Node, Ref
from torchsleuth.config import After
from torchsleuth.run.query import Query
from torchsleuth.run.runners import processes
from torchsleuth.run.runners.server import mark

Compiled = Callable[..., Any]


def query(backend: str, constant: float = 2.0, *, nodes: int = 1, size: int = 8, **options: Any) -> Query:
    """x * constant (sin, * constant, ...), compiled by a backend of this module, or by one that torch knows."""
    fake = schema.Fake("float32", (size,), (1,))
    meta = schema.Meta(val=fake)
    steps = [Node("x", "placeholder", "x", meta=meta)]
    for number in range(nodes):
        before = Ref(steps[-1].name)
        mul = Node(f"n{number}", "call_function", "torch.ops.aten.mul.Tensor", (before, constant + number), meta=meta)
        sin = Node(f"n{number}", "call_function", "torch.ops.aten.sin.default", (before,), meta=meta)
        steps.append(sin if number % 2 else mul)
    steps.append(Node("output", "output", "output", (schema.Tuple((Ref(steps[-1].name),)),)))
    case = schema.Case(
        graph=schema.Graph(tuple(steps)),
        compiler=schema.Compiler(After.AOT, f"hostile:{backend}" if backend in globals() else backend),
        origin=schema.Origin("2.13.0", "3.11.9", "0.1.0", graph="graph 0"),
        inputs=(schema.Tensor("float32", (size,), (1,), storage=0),),
        storages=(schema.Storage(4 * size, schema.Generated("normal", "float32", 0, 1, why="any will do")),),
    )
    return Query(case, trust=True, **options)


# ---- looking at a runner -----------------------------------------------------------------------------------


def folder_of(runner: Any) -> str:
    return str(runner._link.folder)


def processes_of(runner: Any) -> list[int]:
    return processes.marked(mark(folder_of(runner)))


def soon(done: Callable[[], bool], seconds: float = 10.0) -> bool:
    until = time.monotonic() + seconds
    while not done():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


# ---- backends ----------------------------------------------------------------------------------------------


def _then(do: Callable[[], object]) -> Callable[[fx.GraphModule, Any], Compiled]:
    """A backend whose compiled graph does something before it computes what it should."""

    def backend(gm: fx.GraphModule, _: Any) -> Compiled:
        def compiled(*inputs: Any) -> Any:
            do()
            return gm(*inputs)

        return compiled

    return backend


right = _then(lambda: None)


def wrong(gm: fx.GraphModule, _: Any) -> Compiled:
    return lambda *inputs: tuple(one + 1 for one in gm(*inputs))


# ---- deaths ------------------------------------------------------------------------------------------------

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]


def _double_free() -> None:
    block = libc.malloc(100_000)  # too big for the cache of a thread
    other = libc.malloc(100_000)
    libc.free(block)
    libc.free(block)
    libc.free(other)


def _corrupt_heap() -> None:
    blocks = [libc.malloc(3000) for _ in range(40)]
    for block in blocks:
        ctypes.memset(block, 0x41, 3000 + 64)
    for block in blocks:
        libc.free(block)


segfault = _then(lambda: ctypes.string_at(0))
abort = _then(os.abort)
leave = _then(lambda: os._exit(0))
kill = _then(lambda: os.kill(os.getpid(), signal.SIGKILL))
double_free = _then(_double_free)
corrupt_heap = _then(_corrupt_heap)


def segfault_compiling(gm: fx.GraphModule, _: Any) -> Compiled:
    ctypes.string_at(0)
    return gm


# ---- hanging -----------------------------------------------------------------------------------------------


def _loop() -> None:
    while True:
        pass


def _loop_in_c(library: Callable[[str], Any]) -> None:
    path = os.path.join(tempfile.mkdtemp(), "loop.so")
    code = b"volatile int x; void loop(void) { for (;;) x++; }"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", path], input=code, check=True)
    library(path).loop()


loop = _then(_loop)
loop_in_c = _then(lambda: _loop_in_c(ctypes.CDLL))
loop_with_gil = _then(lambda: _loop_in_c(ctypes.PyDLL))
stop = _then(lambda: os.kill(os.getpid(), signal.SIGSTOP))
sleep = _then(lambda: time.sleep(100))


def hanging_compiler(gm: fx.GraphModule, fakes: Any) -> Compiled:
    """Inductor with a C++ compiler that does not come to an end."""
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner

    script = Path(tempfile.mkdtemp()) / "g++"
    script.write_text('#!/bin/sh\ncase "$*" in *.main.cpp*) sleep 1000;; *) exec g++ "$@";; esac\n')
    script.chmod(0o700)
    with config.patch({"cpp.cxx": (str(script),)}):
        return compile_fx_inner(gm, fakes)  # type: ignore[return-value]


def _scribble() -> None:
    """Over all memory that others can see, and not come back."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "sleuth-slate" in line:
            begin = int(line.split("-")[0], 16)
            ctypes.memset(begin, 2, 200)
    time.sleep(100)


scribble = _then(_scribble)
hanging_child = _then(lambda: subprocess.run(["sleep", "1000"]))

# ---- too much ----------------------------------------------------------------------------------------------


def _take_memory() -> None:
    taken = []
    while True:
        taken.append(b"x" * (32 << 20))


def _fork_bomb() -> None:
    for _ in range(20):
        if os.fork() == 0:
            time.sleep(1000)


def _daemon() -> None:
    """A process that has left its session and its parent."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(1000)
        os._exit(0)
    os.wait()


def _come_back_twice() -> None:
    """The child goes on with the worker's work, and is done first."""
    if os.fork():
        time.sleep(1)


def _print() -> None:
    line = b"x" * 99_999 + b"\n"
    for _ in range(1000):
        os.write(1, line)
    print("the last line")


take_memory = _then(_take_memory)
take_all_memory = _then(lambda: torch.ones(1 << 38))
fork_bomb = _then(_fork_bomb)
daemon = _then(_daemon)
come_back_twice = _then(_come_back_twice)
remove_folder = _then(lambda: os.rmdir(os.getcwd()))
print_much = _then(_print)

# ---- exceptions --------------------------------------------------------------------------------------------


class Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__(threading.Lock(), lambda: None)


class Outlandish(BaseException):
    """Not meant to be caught."""


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


def _raise(kind: type[BaseException]) -> None:
    raise kind()


raise_unpicklable = _then(lambda: _raise(Unpicklable))
raise_unprintable = _then(lambda: _raise(Unprintable))
raise_outlandish = _then(lambda: _raise(Outlandish))
raise_interrupt = _then(lambda: _raise(KeyboardInterrupt))
raise_exit = _then(lambda: sys.exit(0))

# ---- a mess ------------------------------------------------------------------------------------------------


def _mess() -> None:
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    torch.manual_seed(5)
    random.seed(5)
    os.chdir("/")
    os.environ["OMP_NUM_THREADS"] = "7"
    os.umask(0o777)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.path.insert(0, "nowhere")
    tempfile.tempdir = "/nowhere"


mess = _then(_mess)
close_files = _then(lambda: os.closerange(3, 1000))


def tidy(gm: fx.GraphModule, _: Any) -> Compiled:
    """Raises if anything is not as in a process that has just begun."""
    found = {
        "dtype": torch.get_default_dtype() is torch.float32,
        "folder": os.getcwd() != "/",
        "variable": os.environ.get("OMP_NUM_THREADS") != "7",
        "random": random.random() not in _MESSY,
        "handler": signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
        "path": "nowhere" not in sys.path,
        "temporary": os.path.isdir(tempfile.gettempdir()),
    }
    if not all(found.values()):
        raise AssertionError(f"left behind: {[name for name, is_well in found.items() if not is_well]}")
    return gm


_MESSY = [random.Random(5).random()]


def speak_and_die(gm: fx.GraphModule, _: Any) -> Compiled:
    print("the last words")
    os.abort()


def capability(gm: fx.GraphModule, _: Any) -> Compiled:
    """Prints its process and the vector instructions that torch uses."""
    print(os.getpid(), torch.backends.cpu.get_cpu_capability(), flush=True)
    return gm


def whoami(gm: fx.GraphModule, _: Any) -> Compiled:
    """Prints its process and how many threads torch would use."""
    print(os.getpid(), torch.get_num_threads(), os.environ["TMPDIR"], flush=True)
    return gm
