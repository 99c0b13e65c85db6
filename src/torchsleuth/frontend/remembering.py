"""What a function can reach and change, noted before a call: so that a record of the call has the state of then.

state = Remembered(roots)            cheap enough for each call that begins to be recorded
with state.put_back() as left: ...   inside, all is as it was, but for what is told
"""

from __future__ import annotations

import collections
import contextlib
import copy
import functools
import io
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Final

import torch

from torchsleuth import torch_compat
from torchsleuth.errors import in_words
from torchsleuth.frontend.kinds import is_a
from torchsleuth.frontend.outside import attributes_of
from torchsleuth.frontend.undoing import ATOMS, Holder, Reach, has_memory

_CONTAINERS: Final = (list, dict, set, collections.deque, bytearray)
_MOST_BYTES: Final = 64 * 1024
"""Of tensors and arrays that are no larger, the content is noted: counters, running means, masks."""
_MOST_ELEMENTS: Final = 100_000
"""Of longer containers, the content is not noted."""


class Remembered:
    """What a function can reach and change, as it was when this was made: attributes, globals, variables, lists, dicts.

    It is held weakly as far as that is possible, so that what the program drops is gone when it drops it.
    """

    def __init__(self, roots: Iterable[tuple[str, Any]]) -> None:
        reach = _Light(roots)
        self.unknown = reach.unknown
        """What may have changed, and nobody knows."""
        self._noted = [_Noted(holder, reach.owners.get(id(holder.value))) for holder in reach.holders]
        self._tensors = reach.tensors

    @contextlib.contextmanager
    def put_back(self) -> Iterator[list[str]]:
        """Inside, everything is as it was, but for what is told. Afterwards it is as it was before."""
        left = list(self.unknown)
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._tensors_put_back(left))
            for each in self._noted:
                path = each.path
                try:
                    holder, is_whole = each.woken()
                    if holder is None or not (holder.changed() and is_whole):
                        left += [] if is_whole else [path]
                        continue
                    now = copy.copy(holder)
                    now.note()
                    stack.callback(_put_back, now)
                    holder.put_back()
                except Exception as error:  # noqa: BLE001 - objects of the user's, which may refuse
                    left.append(f"{path} ({in_words(error)})")
            yield left

    @contextlib.contextmanager
    def _tensors_put_back(self, left: list[str]) -> Iterator[None]:
        with torch_compat.plain_torch():
            written = [(each, tensor) for each in self._tensors if (tensor := each.written()) is not None]
            present = [(tensor, tensor.detach().clone()) for each, tensor in written if each.content is not None]
        with torch_compat.not_counting_writes([tensor for tensor, _ in present]):
            for each, tensor in written:
                if each.content is None or not _overwrite(tensor, each.content):
                    left.append(f"{each.path}, a tensor")
            try:
                yield
            finally:
                for tensor, content in present:
                    _overwrite(tensor, content)


class _Light(Reach):
    """Whatever is in reach, without copies of what is large. It is made for each call that begins to be recorded."""

    most = 20_000

    def __init__(self, roots: Iterable[tuple[str, Any]]) -> None:
        self.tensors: list[_NotedTensor] = []
        self.unknown: list[str] = []
        self.owners: dict[int, Any] = {}
        """Whose attributes a dict holds."""
        super().__init__(roots)
        self._say_why_not()

    def _meet_tensor(self, path: str, value: torch.Tensor) -> None:
        self.tensors.append(_NotedTensor(path, value))

    def _meet_object(self, path: str, value: Any) -> None:
        if not is_a(value, io.IOBase):  # which nobody can pickle
            super()._meet_object(path, value)
            self._say_why_not()

    def _meet_attributes(self, path: str, value: Any, attributes: dict[str, Any]) -> None:
        if is_a(value, torch.nn.Module):
            for name, each in attributes.items():  # a dozen tables for each module, nearly all of them empty
                if "_hooks" in name and isinstance(each, dict) and not each:
                    self.paths[id(each)] = path
        self.owners[id(attributes)] = value
        super()._meet_attributes(path, value, attributes)

    def _hold(self, holder: Holder) -> None:
        value = holder.value
        if isinstance(value, functools._lru_cache_wrapper):
            return
        if _is_large(value):
            self.unknown.append(f"{holder.path}, a large {type(value).__qualname__}")
            return
        super()._hold(holder)

    def _say_why_not(self) -> None:
        if self.why_not:
            self.unknown.append(self.why_not)
            self.why_not = ""


def _is_large(value: Any) -> bool:
    if type(value).__module__ == "numpy":
        return getattr(value, "nbytes", 0) > _MOST_BYTES
    if type(value) is dict:
        return len(value) > _MOST_ELEMENTS
    base: Any = next((each for each in _CONTAINERS if is_a(value, each)), None)
    return base is not None and base.__len__(value) > _MOST_ELEMENTS


class _Noted:
    """One thing that can change, and what it held."""

    def __init__(self, holder: Holder, owner: Any) -> None:
        kind = type(holder.value if owner is None else owner).__qualname__
        self.path = f"{holder.path}, a {kind}" if holder.path else "a global"
        self._of_owner = owner is not None
        self._value = _weakly(holder.value if owner is None else owner)
        self._before = [(_weakly(key), _weakly(value)) for key, value in holder.before]
        self._holder = holder
        holder.value, holder.before = None, []

    def woken(self) -> tuple[Holder | None, bool]:
        """The holder, if what it holds is there yet; and whether all is there that was in it."""
        value = _strongly(self._value)
        if value is _GONE:
            return None, True
        before = [(_strongly(key), _strongly(held)) for key, held in self._before]
        holder = copy.copy(self._holder)
        holder.value = attributes_of(value) if self._of_owner else value
        holder.before = before
        return holder, not any(part is _GONE for pair in before for part in pair)


class _NotedTensor:
    """A tensor: how often it was written to, and what is in it, if that is little."""

    def __init__(self, path: str, tensor: torch.Tensor) -> None:
        self.path = path
        self.content: torch.Tensor | None = None
        self._tensor = weakref.ref(tensor)
        self._version = None if tensor.is_inference() else torch_compat.times_written(tensor)
        if has_memory(tensor) and tensor.nbytes <= _MOST_BYTES:
            self.content = tensor.detach().clone()

    def written(self) -> torch.Tensor | None:
        """The tensor, if it is not as it was."""
        tensor = self._tensor()
        if tensor is None:
            return None
        if self.content is None:
            same = tensor.is_inference() or torch_compat.times_written(tensor) == self._version
        else:
            same = (
                tensor.shape == self.content.shape
                and tensor.dtype == self.content.dtype
                and torch.equal(tensor.detach(), self.content)
            )
        return None if same else tensor


def _overwrite(tensor: torch.Tensor, content: torch.Tensor) -> bool:
    """Writes values into a tensor. Whether it can be done."""
    if tensor.shape != content.shape or tensor.dtype != content.dtype:
        return False
    try:
        with torch_compat.plain_torch(), torch.inference_mode(tensor.is_inference()):
            tensor.detach().copy_(content)
    except RuntimeError:  # several of its elements lie in one place
        return False
    return True


def _put_back(holder: Holder) -> None:
    with contextlib.suppress(Exception):
        holder.put_back()


_GONE: Final = object()
_KEPT: Final = (*ATOMS, type)


class _Weak(weakref.ref[Any]):
    """Stands for an object that is not to be kept alive."""

    __slots__ = ()


def _weakly(value: Any) -> Any:
    """What stands for a value: itself, if it is of a kind that nobody sees the end of."""
    if type(value) in (dict, list, tuple) or is_a(value, _KEPT):
        return value
    try:
        return _Weak(value)
    except TypeError:
        return value


def _strongly(held: Any) -> Any:
    """The value, if it is there yet; or `_GONE`."""
    if type(held) is not _Weak:
        return held
    found = held()
    return _GONE if found is None else found
