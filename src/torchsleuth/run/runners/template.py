"""The template: a process that has imported torch and compiled a first graph. Workers are forked off it.

A forked process has one thread, whatever its parent had, so a template must not have any others: a pool of OpenMP's or
an accelerator's driver would never answer in the worker. It works on one thread while it warms up, and counts them.
Workers have as many as usual again.

It begins with what Inductor does with a graph after AOT. The rest of torch.compile (Dynamo, AOTAutograd, patterns of
joint graphs) follows when a worker is wanted for a query that needs it.

A worker is forked twice, so that it becomes the server's child (who adopts orphans) and the server learns how it ends.
"""

from __future__ import annotations

import array
import contextlib
import gc
import json
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NoReturn

from torchsleuth.run.runners import folders, processes, wire, worker

if TYPE_CHECKING:
    import torch

_FILES: Final = 6
VARIABLES: Final = {"OPENBLAS_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""What a template has besides: numpy would start threads when it is imported, torch a driver when it looks for one."""
_ACCELERATORS: Final = ("cuda", "xpu", "mtia")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Warm up, say so, and make workers until the server closes the socket."""
    server, fd = json.loads((arguments or sys.argv[1:])[0])
    processes.die_with(server)
    sock = socket.socket(fileno=fd)
    unsafe = warm_up(_compile_graph)
    sock.sendall(wire.encoded(wire.Warmed(unsafe)))
    incoming = wire.Incoming()
    is_whole = False
    while True:
        data, fds = _receive(sock)
        if not data:
            os._exit(0)
        for message in incoming.add(data):
            if not isinstance(message, wire.Cast):
                continue
            if message.whole and not is_whole:
                is_whole = True
                if unsafe := warm_up(_compile_program):
                    sock.sendall(wire.encoded(wire.Warmed(unsafe)))
                    os._exit(0)
            _cast(message, fds, sock)


def warm_up(compile: Callable[[], None]) -> str:
    """Do once what every worker would have to do. Returns why no worker may be forked off us, if that is so."""
    gc.disable()  # next to nothing of what is made here is ever garbage
    import torch

    global _usual_threads
    _no_threads_of_progress_bars()
    _usual_threads = _usual_threads or torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        compile()
    except Exception:  # noqa: BLE001 - the queries will say what is wrong with the compiler
        traceback.print_exc()
    _imported()
    torch.compiler.reset()
    gc.freeze()
    gc.enable()
    for name in _ACCELERATORS:
        if hasattr(torch, name) and getattr(torch, name).is_initialized():
            return f"{name} is in use"
    if processes.threads() != 1:
        return f"there are {processes.threads()} threads"
    return ""


_usual_threads = 0


def _program(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor]:
    return ((x @ weight).relu().sum() + x.sin().mean(),)


def _compile_graph() -> None:
    """A graph as Inductor gets it from AOTAutograd: what most queries are about."""
    import torch

    from torchsleuth import torch_compat

    x, weight = torch.ones(4, 4), torch.ones(4, 4)
    with _processor_probed() as probed:
        torch_compat.import_inductor()
        from torch.fx.experimental.proxy_tensor import make_fx

        from torchsleuth.run.compiling import really_compiled

        gm = make_fx(_program, tracing_mode="fake")(x, weight)
        fakes = [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]
        probed()
        with torch.no_grad(), really_compiled(), torch_compat.tracing(fakes[0].fake_mode):
            torch_compat.inductor_compiler()(gm, fakes)([x, weight])


def _compile_program() -> None:
    """A program, by all of torch.compile."""
    import torch

    from torchsleuth.run.compiling import really_compiled

    x, weight = torch.ones(4, 4, requires_grad=True), torch.ones(4, 4, requires_grad=True)
    with really_compiled():
        torch.compile(_program)(x, weight)  # not backward, for which torch would start a thread


@contextlib.contextmanager
def _processor_probed() -> Iterator[Callable[[], None]]:
    """Inductor asks other processes what the processor can do, and waits for them. That is done beside what it does
    until it needs to know; yields how to wait for it."""
    from torchsleuth import torch_compat

    probing = threading.Thread(target=torch_compat.processor_probe(folders.LOADS))
    probing.start()
    try:
        yield probing.join
    finally:
        probing.join()


def _imported() -> None:
    """What a query needs besides."""
    import torchsleuth.run.performing  # noqa: F401
    from torchsleuth.run.runners.known import Known

    Known()


def _no_threads_of_progress_bars() -> None:
    """torch shows none, but the library that could would have a thread that looks after them."""
    try:
        import tqdm  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        return
    tqdm.tqdm.monitor_interval = 0


# ---- workers ---------------------------------------------------------------------------------------------------


def _receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    """Bytes, and the files that came with them."""
    fds = array.array("i")
    data, ancillary, _, _ = sock.recvmsg(1 << 16, socket.CMSG_SPACE(_FILES * fds.itemsize))
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    return data, list(fds)


def _cast(message: wire.Cast, fds: list[int], sock: socket.socket) -> None:
    between = os.fork()
    if between:
        os.waitpid(between, 0)
        for fd in fds:
            os.close(fd)
        return
    try:
        if os.fork():
            os._exit(0)
        os.setsid()
        sock.close()
        _wait_for_adoption(message.server)
        worker.live(message.server, message.folder, fds, warm=lambda: _settle(message))
    except BaseException:  # noqa: BLE001 - a copy of the template must never go on as the template
        traceback.print_exc()
    finally:
        os._exit(70)


def _wait_for_adoption(server: int) -> None:
    until = time.monotonic() + 5.0
    while os.getppid() != server and time.monotonic() < until:
        time.sleep(0.0005)


def _settle(message: wire.Cast) -> None:
    """What is different in each worker: its folder, and threads again."""
    import torch

    from torchsleuth import torch_compat

    worker.surround(message.variables)
    torch_compat.keep_headers_in(str(folders.headers_in(message.folder)))
    torch.set_num_threads(_usual_threads)


if __name__ == "__main__":
    main()
