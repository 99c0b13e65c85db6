"""Memory: how much there is, and whether the kernel killed for want of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def available() -> int | None:
    """Bytes that can be had without anything being killed; None if nobody says."""
    found = [
        limit - (_number(f"{folder}/{usage}") or 0)
        for folder, most, usage in _limits()
        if (limit := _number(f"{folder}/{most}")) is not None
    ]
    try:
        words = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        found.append(int(words["MemAvailable"].split()[0]) * 1024)
    except (OSError, KeyError, ValueError):
        pass
    return max(min(found), 0) if found else None


def kills() -> int | None:
    """How many processes of our control group were killed for want of memory; None if nobody says."""
    files = (f"{folder}/{name}" for folder in _groups() for name in ("memory.events", "memory.oom_control"))
    return next((count for file in files if (count := _count(file)) is not None), None)


def grew(before: int | None, now: int | None) -> bool:
    """Whether there were more such kills, of two numbers of them."""
    return before is not None and now is not None and now > before


def _limits() -> Iterator[tuple[str, str, str]]:
    for folder in _groups():
        yield folder, "memory.max", "memory.current"
        yield folder, "memory.limit_in_bytes", "memory.usage_in_bytes"


def _groups() -> list[str]:
    """The folders of our control groups that may know about memory, the innermost first."""
    try:
        groups = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return []
    found = []
    for _, controllers, path in (group for group in groups if len(group) == 3):
        if not controllers:
            found += [f"/sys/fs/cgroup{path}", "/sys/fs/cgroup"]
        elif "memory" in controllers.split(","):
            found += [f"/sys/fs/cgroup/memory{path}", "/sys/fs/cgroup/memory"]
    return found


def _number(file: str) -> int | None:
    try:
        return int(Path(file).read_text())
    except (OSError, ValueError):  # not there, or "max"
        return None


def _count(file: str) -> int | None:
    try:
        words = dict(line.split(None, 1) for line in Path(file).read_text().splitlines())
        return int(words["oom_kill"])
    except (OSError, KeyError, ValueError):
        return None
