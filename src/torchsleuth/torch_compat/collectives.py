"""Process groups that talk to nobody, so that graphs with collectives run on one process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torchsleuth.torch_compat.names import resolve


@contextmanager
def one_process(size: int, names: Iterable[str]) -> Iterator[None]:
    """Inside, collectives of groups of so many processes run in this one. What they compute is not to be trusted.

    A process that has joined a group already keeps it.
    """
    from torch import distributed

    store, register = resolve("FakeStore"), resolve("register_group")
    if distributed.is_initialized():
        yield
        return
    distributed.init_process_group(backend="fake", rank=0, world_size=size, store=store())
    try:
        world = distributed.group.WORLD
        assert world is not None
        for name in names:
            if name != world.group_name:
                register(name, world)
        yield
    finally:
        distributed.destroy_process_group()
