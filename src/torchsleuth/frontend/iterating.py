"""Whatever hands out one value at a time: iterators of Python's own, generators that we interpret, and both in one.

`next` of a list's iterator is a native call. `next` of a generator, of a `map` over a lambda, of a class with
`__next__` runs code of the user's, which has to be interpreted. The real objects are kept up to date either
way: a `map` stays a `map`, only that its function is called by us.

An iterator that comes from before the segment is not looked into at all: its `next` breaks the graph. What it holds is
not visible without taking it out.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable
from types import GeneratorType
from typing import Any, Final

import torch

from torchsleuth.frontend.attributes import Attributes, is_python
from torchsleuth.frontend.frames import ABSENT, ITERATE, Generator
from torchsleuth.frontend.guards import Source
from torchsleuth.frontend.kinds import is_a
from torchsleuth.frontend.machine import PUSHED, Break, UserError
from torchsleuth.frontend.outside import lookup
from torchsleuth.frontend.positions import POSITIONED, can_be_told, parts
from torchsleuth.frontend.symbolic import Symbolic

EXHAUSTED: Final = object()

CONTAINERS: Final[tuple[type, ...]] = (
    list,
    tuple,
    dict,
    set,
    frozenset,
    str,
    bytes,
    range,
    collections.deque,
    type({}.items()),
)
VIEWS: Final[tuple[type, ...]] = (type({}.keys()), type({}.values()), type({}.items()))
_SOME_OF_ALL: Final[tuple[Any, ...]] = ([], (), {}, {}.keys(), {}.values(), {}.items(), set(), "", "é", b"", range(0))
ITERATORS: Final[tuple[type, ...]] = (
    *(type(iter(each)) for each in _SOME_OF_ALL),
    *(type(iter(range(2**70))), type(iter(collections.deque())), type(reversed([])), type(reversed({}))),
    *(type(reversed({}.values())), type(reversed({}.items())), enumerate, reversed, zip, map, filter),
    *(itertools.count, itertools.cycle, itertools.repeat, itertools.chain, itertools.islice, itertools.accumulate),
    *(itertools.product, itertools.pairwise, itertools.zip_longest, itertools.compress, itertools.combinations),
    *(itertools.permutations, itertools.starmap, itertools.takewhile, itertools.dropwhile),
    type(iter(collections.OrderedDict())),
)
"""Iterators of Python's own."""


class Iterating(Attributes):
    def is_interpreted(self, iterator: Any) -> bool:
        """Whether taking the next value of an iterator runs Python code that has to be interpreted."""
        kind = type(iterator)
        if kind is Generator:
            return bool(iterator.native is None)
        if kind in (map, filter):
            parts = iterator.__reduce__()[1]
            function, rest = parts[0], parts[1:]
            return (function is not None and not _is_pure(function)) or any(map(self.is_interpreted, rest))
        if kind is zip or kind is enumerate:
            return any(map(self.is_interpreted, iterator.__reduce__()[1]))
        if kind in CONTAINERS or kind in ITERATORS or kind in VIEWS:
            return False
        return is_python(lookup(kind, "__next__")) or is_python(lookup(kind, "__iter__"))

    def iterate(self, value: Any) -> Any:
        """An iterator over `value`, or `PUSHED`."""
        kind = type(value)
        if kind is Generator or kind in ITERATORS:
            return value
        if is_a(value, torch.Tensor):
            return iter(self.unbound(value))
        begin = lookup(kind, "__iter__")
        if is_python(begin):
            self.outside.class_attribute(kind, "__iter__", begin)
            return self.call(begin, [value], {})
        if begin is ABSENT and is_python(lookup(kind, "__getitem__")):
            return self.call(_by_index, [value], {})
        if (
            kind in CONTAINERS
            or kind in VIEWS
            or is_a(value, (list, tuple, dict, set, frozenset, collections.deque, str))
        ):
            self.outside.shallow(value)
            self.view(value)
            return self.look(iter, value)
        if begin is ABSENT or begin is None:
            return self.native(iter, value)
        if self.outside.is_ours(value) and kind.__module__ in ("enum", "builtins", "collections", "itertools"):
            return self.native(iter, value)
        if is_a(value, type):
            return self._over_class(value)
        raise Break(f"iterating over a {kind.__qualname__}")

    def _over_class(self, kind: type) -> Any:
        begin = lookup(type(kind), "__iter__")
        if issubclass(type(kind), type) and type(kind).__module__ == "enum":
            return iter(list(kind))  # type: ignore[call-overload]
        if is_python(begin):
            return self.call(begin, [kind], {})
        return self.native(iter, kind)

    def view(self, value: Any) -> None:
        """A view of a dict shows all of it."""
        if type(value) in VIEWS:
            self.outside.shallow(dict_of(value))

    def unbound(self, tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """A tensor's rows, as iterating over it gives them."""
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            raise Break(f"iterating over a tensor of the class {type(tensor).__qualname__}")
        if tensor.dim() == 0:
            self.recorder.knows_kind(tensor)
            return self.native(tuple, tensor)  # type: ignore[no-any-return]
        if self.recorder.dynamic:
            self.recorder.size(tensor)
            size = self.recorder.size(tensor)[0]
            if type(size) is Symbolic:
                size.plain()
        rows: tuple[torch.Tensor, ...] = tuple(self.torch_call("unbind", True, (tensor,), {}))
        return rows

    def next_of(self, iterator: Any) -> Any:
        """The next value, or `EXHAUSTED`. Waits for it."""
        try:
            result = self.next_pushed(iterator, wait=True)
        except UserError as raised:
            if is_a(raised.error, StopIteration):
                return EXHAUSTED
            raise
        return result

    def next_pushed(self, iterator: Any, *, wait: bool = False) -> Any:
        """The next value, or `EXHAUSTED`, or (unless it is to `wait`) `PUSHED`: a frame whose outcome is ITERATE."""
        kind = type(iterator)
        if kind is Generator:
            if iterator.frame is None and iterator.native is None:
                return EXHAUSTED
            if iterator.native is not None:
                if not wait:
                    raise Break("the next value of a generator that goes on natively")
                self.recorder.spoil("the next value of a generator that goes on natively")
                with self.recorder.auditor.unrecorded():
                    return self.native(next, iterator.native, EXHAUSTED)
            if wait:
                return self.resume_now(iterator)
            return self.resume(iterator, ITERATE)
        if id(iterator) in self.adopted:
            return self._next_of_adopted(iterator)
        if self.comes_from_before(iterator):
            frame = self.frames[-1]
            if wait or (frame.code, frame.place - 1) not in self.home.unrolled or not can_be_told(iterator):
                raise Break(f"the next value of {a_(kind)} from before the graph")
            source = self.outside.source(iterator)
            if source is None:
                raise Break(f"the next value of {a_(kind)} from before the graph")
            self._adopt(iterator, source)
            self.adopted[id(iterator)] = [iterator, 0]
            return self._next_of_adopted(iterator)
        if kind is map and self.is_interpreted(iterator):
            function, *rest = iterator.__reduce__()[1]
            values = []
            for each in rest:
                if (value := self.next_of(each)) is EXHAUSTED:
                    return EXHAUSTED
                values.append(value)
            return self.call_now(function, *values)
        if kind is filter and self.is_interpreted(iterator):
            function, rest = iterator.__reduce__()[1]
            while (value := self.next_of(rest)) is not EXHAUSTED:
                kept = value if function is None or function is bool else self.call_now(function, value)
                if self.truth(kept):
                    return value
            return EXHAUSTED
        if kind is zip and self.is_interpreted(iterator):
            found = []
            for each in iterator.__reduce__()[1]:
                value = self.next_of(each)
                if value is EXHAUSTED:
                    return EXHAUSTED
                found.append(value)
            return tuple(found)
        step = lookup(kind, "__next__")
        if is_python(step):
            self.outside.class_attribute(kind, "__next__", step)
            return self.call_now(step, iterator)
        if step is ABSENT or step is None:
            return self.raises(TypeError(_NO_ITERATOR.format(kind.__name__)))
        if kind not in ITERATORS or self.is_interpreted(iterator):
            raise Break(f"the next value of {a_(kind)}")
        return self.native(next, iterator, EXHAUSTED)

    def _adopt(self, iterator: Any, source: Source) -> None:
        """Looks into an iterator from before the segment: what it iterates over, and where it stands, is guarded."""
        guards = self.outside.guards
        inside, numbers = parts(iterator)
        code = guards.assign(f"PARTS({source.code})")
        guards.check(f"{code}[1] == {numbers!r}", f"{source.words} stands where it stood", f"{code}[1]")
        guards.check(f"len({code}[0]) == {len(inside)}", f"{source.words} is of the same kind")
        for number, each in enumerate(inside):
            here = Source(f"{code}[0][{number}]", source.words, live=True)
            self.outside.touch(each, here)
            found = self.outside.source(each)
            if type(each) in POSITIONED and found is not None:
                self._adopt(each, found)
            else:
                self.outside.shallow(each)

    def _next_of_adopted(self, iterator: Any) -> Any:
        value = self.native(next, iterator, EXHAUSTED)
        self.adopted[id(iterator)][1] += 1
        return value

    def comes_from_before(self, iterator: Any) -> bool:
        """Whether an iterator was there before the segment: then nobody knows what it holds."""
        if is_a(iterator, GeneratorType):
            return True
        if type(iterator) not in ITERATORS:
            return False
        if self.outside.source(iterator) is not None:
            return id(iterator) not in self.adopted
        inside = iterator.__reduce__()[1] if type(iterator) in (zip, map, filter, enumerate) else ()
        return any(self.comes_from_before(each) for each in inside)

    def items(self, value: Any, *, counts: bool = False) -> list[Any]:
        """All values, as a list. Waits for them. `counts`: whoever wants them asks how many there will be."""
        iterator = self.iterate_now(value)
        if counts:
            self.count(value)
        if not self.is_interpreted(iterator) and not self.comes_from_before(iterator):
            found: list[Any] = self.native(list, iterator)
            self.drained[id(iterator)] = (iterator, found)
            return list(found)
        found = []
        drained = self.drained
        while (each := self.next_of(iterator)) is not EXHAUSTED:
            found.append(each)
            drained[id(iterator)] = (iterator, found)
            self.drained = drained
        self.drained = drained
        return found

    def one_by_one(
        self, add_all: Callable[[Any], Any], add: Callable[[Any], Any], values: Any, *, counts: bool
    ) -> None:
        """Puts values into a container: all at once, or, if Python code has to run for each, each as it comes."""
        iterator = values if self.is_plain(values) else self.iterate_now(values)
        if counts:
            self.count(values)
        if not self.is_interpreted(iterator):
            self.native(add_all, self.native_iterable(iterator))
            return
        while (each := self.next_of(iterator)) is not EXHAUSTED:
            self.native(add, each)

    def count(self, value: Any) -> None:
        """Asks for the number of elements, as lists and tuples do before they take them."""
        for name in ("__len__", "__length_hint__"):
            found = lookup(type(value), name)
            if is_python(found):
                self.outside.class_attribute(type(value), name, found)
                self.call_now(found, value)
            if found is not ABSENT:
                return

    def is_plain(self, value: Any) -> bool:
        """Whether it is a container of Python's own."""
        return type(value) in CONTAINERS or type(value) in VIEWS or is_a(value, torch.Tensor)

    def iterate_now(self, value: Any) -> Any:
        base = len(self.frames)
        self.bases.append(base)
        try:
            result = self.iterate(value)
            iterator = self.run(base) if result is PUSHED else result
            self._must_iterate(value, iterator)
            return iterator
        except UserError:
            del self.frames[base:]
            raise
        finally:
            self.bases.pop()

    def _must_iterate(self, value: Any, iterator: Any) -> None:
        """Raises what `iter` does, if what `__iter__` of the user's has given is no iterator."""
        if is_python(lookup(type(value), "__iter__")) and lookup(type(iterator), "__next__") in (ABSENT, None):
            self.raises(TypeError(_NO_ITERATOR.format(type(iterator).__name__)))

    def native_iterable(self, value: Any, *, counts: bool = False) -> Any:
        """The same values for native code to iterate over: a list, if Python code has to run for them."""
        if is_a(value, torch.Tensor):
            return self.unbound(value)
        if type(value) in CONTAINERS or (
            is_a(value, (list, tuple, dict, set, frozenset, str)) and not is_python(lookup(type(value), "__iter__"))
        ):
            self.outside.shallow(value)
            return value
        if type(value) in VIEWS:
            self.view(value)
            return value
        return self.items(value, counts=counts)

    # What the layers above provide.

    def truth(self, value: Any) -> bool:
        raise NotImplementedError


_NO_ITERATOR: Final = "iter() returned non-iterator of type '{}'"


def _is_pure(function: Callable[..., Any]) -> bool:
    """Whether a function that `map` calls is native, and does nothing that would have to be seen."""
    return any(function is each for each in (bool, int, float, str, len, abs, type, repr, tuple, list, ord, chr))


def dict_of(view: Any) -> dict[Any, Any]:
    """The dict that a view shows."""
    import gc

    return next(each for each in gc.get_referents(view) if is_a(each, dict))


def _by_index(value: Any) -> Any:
    """How CPython iterates over what has `__getitem__` alone."""
    index = 0
    while True:
        try:
            item = value[index]
        except IndexError:
            return
        yield item
        index += 1


def a_(kind: type) -> str:
    """The name of a class with its article."""
    name = kind.__qualname__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
