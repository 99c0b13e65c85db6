"""Writing and reading the tensors of a case, against `safetensors.torch.save_file` and `load_file` of the same tensors.

Both sides are measured in one run, alternating, because absolute seconds on a shared machine mean little. Goals: time
ratio ≤ 1.3, extra memory ≤ 64 MiB.

What each side does is not the same, so there is more than one row. A case hashes each storage and writes one file for
each; when it is saved, its files are flushed to the disk, hashed once more, and sealed. safetensors writes one file and
flushes nothing. Both map their files to read them. One of a case that is not sealed, because it came from elsewhere, is
hashed when it is first read.

    write                     ours, not flushed / save_file as it is
    write, flushed            ours, as when a case is saved / save_file, then fsync
    write again, flushed      the same, ours being there already
    read                      ours / load_file as it is: mapping against mapping
    read, all bytes used      both, then one pass over all bytes
    read from the disk        the same, after the pages of both were dropped from the cache
    first reading             ours with broken seals, then one pass over all bytes / load_file and one pass
    first reading, checked    the same / load_file, then the same hash of all bytes, then one pass

Before each use of the disk a file of the same size is written and removed, so that both sides find memory for the page
cache at hand: a virtual machine may have to ask its host for it, which takes longer than all the rest. Sides take turns
in going first. A flushed write cannot be faster than the disk; how fast that is, the row with the fsync tells.

Memory is the growth of the peak resident size during one call, in a process of its own, beyond the tensors themselves:
those are there before writing, and part of the growth (2 GB, mapped pages included) when reading.

    python benchmarks/case_io.py [--gigabytes N] [--tensors N] [--rounds N] [--folder DIR]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file, save_file

from torchsleuth.case import schema
from torchsleuth.case.storages.blobs import FolderBlobs, digest_of
from torchsleuth.case.storages.tensors import TensorReader, TensorWriter

Case = tuple[list[schema.Tensor], tuple[schema.Storage, ...]]


@dataclass(frozen=True)
class Sides:
    """Where the two sides keep their files."""

    folder: Path

    @property
    def ours(self) -> Path:
        return self.folder / "tensors"

    @property
    def peers(self) -> Path:
        return self.folder / "peer.safetensors"

    def clear(self) -> None:
        shutil.rmtree(self.ours, ignore_errors=True)
        self.peers.unlink(missing_ok=True)
        os.sync()

    def get_memory(self, nbytes: int) -> None:
        """Make sure that the page cache finds memory for so many bytes."""
        piece = bytes(2**22)
        with tempfile.TemporaryFile(dir=self.folder) as file:
            for _ in range(0, nbytes, len(piece)):
                file.write(piece)


def inputs(gigabytes: float, count: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    elements = int(gigabytes * 10**9) // 4 // count
    return {f"x{i}": torch.empty(elements).normal_(generator=generator) for i in range(count)}


def write_ours(sides: Sides, tensors: dict[str, torch.Tensor], *, flushed: bool) -> Case:
    blobs = FolderBlobs(sides.ours)
    writer = TensorWriter(blobs)
    records = [writer.add(tensor) for tensor in tensors.values()]
    if flushed:
        stored = [(entry.content, entry.nbytes) for entry in writer.storages]
        blobs.settle([(content.digest, nbytes) for content, nbytes in stored if isinstance(content, schema.Stored)])
    return [record for record in records if isinstance(record, schema.Tensor)], writer.storages


def write_peers(sides: Sides, tensors: dict[str, torch.Tensor], *, flushed: bool) -> None:
    save_file(tensors, sides.peers)
    if flushed:
        fd = os.open(sides.peers, os.O_RDWR)
        os.fsync(fd)
        os.close(fd)


def read_ours(sides: Sides, case: Case, *then: Callable[[torch.Tensor], object]) -> list[torch.Tensor]:
    records, storages = case
    reader = TensorReader(FolderBlobs(sides.ours), storages)
    return passed([reader.get(record) for record in records], then)


def read_peers(sides: Sides, *then: Callable[[torch.Tensor], object]) -> list[torch.Tensor]:
    return passed(list(load_file(sides.peers).values()), then)


def passed(tensors: list[torch.Tensor], then: tuple[Callable[[torch.Tensor], object], ...]) -> list[torch.Tensor]:
    for step in then:
        for tensor in tensors:
            step(tensor)
    return tensors


def use(tensor: torch.Tensor) -> object:
    return tensor.view(torch.uint8).max()


def check(tensor: torch.Tensor) -> object:
    return digest_of(tensor.untyped_storage())


def drop_from_cache(sides: Sides) -> None:
    for path in (sides.peers, *sides.ours.iterdir()):
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def break_seals(sides: Sides) -> None:
    for path in sides.ours.iterdir():
        os.utime(path)


def seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


# ---- time ------------------------------------------------------------------------------------------------


def measure(sides: Sides, tensors: dict[str, torch.Tensor], rounds: int) -> dict[str, list[float]]:
    """For each row of the table: ours / the peer's, round by round."""
    found: dict[str, list[float]] = {}
    total = sum(tensor.nbytes for tensor in tensors.values())

    def compare(row: str, ours: Callable[[], object], peers: Callable[[], object], before: Callable[[], None]) -> None:
        calls = {"ours": ours, "peers": peers}
        taken = {}
        for side in sorted(calls, reverse=len(found.setdefault(row, [])) % 2 == 1):
            before()
            taken[side] = seconds(calls[side])
        found[row].append(taken["ours"] / taken["peers"])

    def nothing() -> None: ...

    def empty() -> None:
        sides.clear()
        sides.get_memory(total)

    def more() -> None:
        os.sync()
        sides.get_memory(total)

    def drop() -> None:
        drop_from_cache(sides)
        sides.get_memory(total)

    def unseal() -> None:
        break_seals(sides)

    for _ in range(rounds):
        for row, flushed in (("write / save_file", False), ("write, flushed / save_file, flushed", True)):
            ours = partial(write_ours, sides, tensors, flushed=flushed)
            compare(row, ours, partial(write_peers, sides, tensors, flushed=flushed), empty)
        case = write_ours(sides, tensors, flushed=True)
        ours, peers = (
            partial(write_ours, sides, tensors, flushed=True),
            partial(write_peers, sides, tensors, flushed=True),
        )
        compare("write again, flushed / save_file, flushed", ours, peers, more)
        os.sync()
        opened, used = partial(read_ours, sides, case), partial(read_ours, sides, case, use)
        compare("read / load_file", opened, lambda: read_peers(sides), nothing)
        compare("read, all bytes used / load_file, the same", used, lambda: read_peers(sides, use), nothing)
        compare("read from the disk, the same / load_file", used, lambda: read_peers(sides, use), drop)
        compare("first reading, the same / load_file", used, lambda: read_peers(sides, use), unseal)
        compare("first reading, the same / load_file, checked", used, lambda: read_peers(sides, check, use), unseal)
    return found


# ---- memory ----------------------------------------------------------------------------------------------


def extra_memory(sides: Sides, what: str, gigabytes: float, count: int) -> float:
    """MiB by which the resident size grew beyond the tensors themselves, in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_extra_memory_here, (sides, what, gigabytes, count))


def _extra_memory_here(sides: Sides, what: str, gigabytes: float, count: int) -> float:
    tensors = inputs(gigabytes, count)
    total = sum(tensor.untyped_storage().nbytes() for tensor in tensors.values())
    case = write_ours(sides, tensors, flushed=True)
    write_peers(sides, tensors, flushed=False)
    calls: dict[str, Callable[[], object]] = {
        "write ours": lambda: write_ours(sides, tensors, flushed=True),
        "write peers": lambda: write_peers(sides, tensors, flushed=False),
        "read ours": lambda: read_ours(sides, case, use),
        "read peers": lambda: read_peers(sides, use),
    }
    if what == "write ours":
        sides.clear()
    elif what.startswith("read"):
        tensors.clear()
        break_seals(sides)
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = _resident("VmHWM")
    kept = calls[what]()
    grown = _resident("VmHWM") - before
    del kept
    return (grown - (total if what.startswith("read") else 0)) / 2**20


def _resident(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"this system does not tell {field}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2)
    parser.add_argument("--tensors", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--folder", type=Path, default=None, help="where to write (default: a temporary folder)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        sides = Sides(Path(folder))
        rows = measure(sides, inputs(options.gigabytes, options.tensors), options.rounds)
        memory = {
            what: extra_memory(sides, what, options.gigabytes, options.tensors)
            for what in ("write ours", "write peers", "read ours", "read peers")
        }
    console = Console(width=120)
    times = Table(title=f"{options.gigabytes:g} GB in {options.tensors} tensors, {options.rounds} rounds")
    for heading in ("", "time ratio", "over rounds"):
        times.add_column(heading, justify="left" if not heading else "right")
    for row, ratios in rows.items():
        times.add_row(row, f"{statistics.median(ratios):.2f}", f"{min(ratios):.2f} – {max(ratios):.2f}")
    console.print(times)
    extra = Table(title="peak memory beyond the tensors")
    for heading in ("", "ours, MiB", "safetensors, MiB"):
        extra.add_column(heading, justify="left" if not heading else "right")
    for what in ("write", "read"):
        extra.add_row(what, f"{memory[f'{what} ours']:.0f}", f"{memory[f'{what} peers']:.0f}")
    console.print(extra)


if __name__ == "__main__":
    main()
