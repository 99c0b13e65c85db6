"""Where torch asks its bisector which parts of a compilation to leave out, and somebody else's answers.

    with bisector_answers(answers):       torch asks `answers`, and compiles with the backend that they name
        fn()

Torch imports its bisector's class in the functions that ask it, again each time. So a module of ours stands under that
name in `sys.modules` for as long as anybody has answers to give. Torch's own is not imported for that, and if it was
there before, it is there again afterwards. What it is called is read off the code of a function that asks.

Two of those functions build something that lasts: a compiled function, which would keep the backend of the moment.
They are told that there is nothing to ask. The backend is chosen when a graph is handed to one instead, so a function
that was compiled elsewhere, or before, takes part as well.
"""

from __future__ import annotations

import dis
import functools
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise
from types import ModuleType
from typing import Any, Final, Protocol
from weakref import WeakSet

from torchsleuth.errors import MissingTorchName
from torchsleuth.locks import ForkableLock
from torchsleuth.torch_compat.configuration import config_is_loaded, config_values
from torchsleuth.torch_compat.names import NAMES, TESTED, resolve

_CLASS: Final = "CompilerBisector"
_INDUCTOR: Final = "inductor"


class Answers(Protocol):
    """What torch is told."""

    @property
    def backend(self) -> str:
        """What graphs are compiled with, whatever backend the program has asked for."""

    @property
    def subsystem(self) -> str | None:
        """The part of it that is being looked at."""

    def config_change(self, backend: str) -> dict[str, object] | None:
        """Options that this backend is to be given."""

    def disables(self, backend: str, subsystem: str, debug_info: Callable[[], str] | None) -> bool:
        """Whether to leave out what is about to be applied. `debug_info` says what that is."""


_MINE: ContextVar[Answers | None] = ContextVar("torchsleuth.bisector", default=None)


@contextmanager
def bisector_answers(answers: Answers) -> Iterator[None]:
    """Inside, torch asks `answers`: in this thread or task, and in threads that begin meanwhile.

    Those that were there before go on as always. Autograd's count as new.
    """
    turn = _Turn(answers, bystanders=_other_threads())
    with _STANDING.taken(turn):
        token = _MINE.set(answers)
        try:
            yield
        finally:
            _MINE.reset(token)


def answer_bisector(answers: Answers) -> ModuleType:
    """From now on torch asks `answers`, in all threads. Gives the module that stands for torch's own."""
    return _STANDING.take(_Turn(answers, bystanders=WeakSet()))


def bisector_module() -> str:
    """What the module is called from which torch imports its bisector's class."""
    asking = resolve("inductor_backend").__init__
    for instruction, following in pairwise(dis.get_instructions(asking)):
        if instruction.opname == "IMPORT_NAME" and following.argval == _CLASS:
            return str(instruction.argval)
    raise MissingTorchName(
        "this torch asks no bisector, so this does not work: finding the part of torch.compile that fails",
        cause=f"{asking.__qualname__} does not import a class {_CLASS}",
        remedy=f"install a torch that torchsleuth was tested on ({', '.join(TESTED)})",
    )


@contextmanager
def counters_kept() -> Iterator[None]:
    """Afterwards Dynamo's counters are what they were, whatever was compiled inside."""
    before = {name: Counter(counted) for name, counted in _counters().items()}
    try:
        yield
    finally:
        counters = _counters()
        counters.clear()
        counters.update(before)


def _counters() -> dict[str, Counter[str]]:
    """If nobody has imported Dynamo yet, it has counted nothing."""
    found: dict[str, Counter[str]] = resolve("counters") if NAMES["counters"].module in sys.modules else {}
    return found


def current_answers() -> Answers | None:
    """The answers that hold in this thread, if any do."""
    mine = _MINE.get()
    return mine if mine is not None else _STANDING.answers_here()


class Bisector:
    """Stands for the bisector's class: has what torch calls on it.

    For whoever has nothing to do with our answers it is what it was: `displaced`, or a bisector that is switched off.
    """

    def __init__(self, displaced: Any = None) -> None:
        self._displaced = displaced

    def __getattr__(self, name: str) -> Any:
        return getattr(self._displaced, name)

    @property
    def bisection_enabled(self) -> bool:
        """Torch's caches are switched off where this is so."""
        if current_answers() is not None:
            return True
        return bool(self._displaced is not None and self._displaced.bisection_enabled)

    def get_backend(self) -> str | None:
        answers = current_answers()
        if answers is None:
            return None if self._displaced is None else self._displaced.get_backend()
        return None if _asked_by_what_lasts() else answers.backend

    def get_subsystem(self) -> str | None:
        answers = current_answers()
        if answers is None:
            return None if self._displaced is None else self._displaced.get_subsystem()
        return answers.subsystem

    def get_config_change(self, config_name: str) -> dict[str, object] | None:
        answers = current_answers()
        if answers is None:
            return None if self._displaced is None else self._displaced.get_config_change(config_name)
        return None if _asked_by_what_lasts() else answers.config_change(config_name)

    def disable_subsystem(self, backend: str, subsystem: str, debug_info: Callable[[], str] | None = None) -> bool:
        answers = current_answers()
        if answers is None:
            displaced = self._displaced
            return bool(displaced is not None and displaced.disable_subsystem(backend, subsystem, debug_info))
        return answers.disables(backend, subsystem, debug_info)


def _asked_by_what_lasts() -> bool:
    """Whether it is torch.compile itself that asks, or the constructor of its backends. No others live in `torch`."""
    return sys._getframe(2).f_globals.get("__name__") == "torch"


class _StandIn(ModuleType):
    """The module that torch imports the class from. Any other name is the displaced module's."""

    def __init__(self, name: str, displaced: ModuleType | None) -> None:
        super().__init__(name, "Stands for torch's bisector while torchsleuth bisects.")
        self.displaced = displaced
        setattr(self, _CLASS, Bisector(getattr(displaced, _CLASS, None)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__.get("displaced"), name)


class _Turn:
    """Answers, and the threads that they are not for."""

    def __init__(self, answers: Answers, bystanders: WeakSet[threading.Thread]) -> None:
        self.answers = answers
        self.bystanders = bystanders


def _other_threads() -> WeakSet[threading.Thread]:
    here = threading.current_thread()
    others = (each for each in threading.enumerate() if each is not here)
    return WeakSet(each for each in others if not isinstance(each, threading._DummyThread))


class _Standing:
    """The stand-in and the two seams, in their places while anybody has answers to give."""

    def __init__(self) -> None:
        self._lock = ForkableLock()
        self._turns: tuple[_Turn, ...] = ()
        self._module: _StandIn | None = None
        self._seams: list[_BackendSeam] = []

    def answers_here(self) -> Answers | None:
        """For a thread without answers of its own: those that were begun last and do not leave it out."""
        if not self._turns:
            return None
        here = threading.current_thread()
        return next((turn.answers for turn in reversed(self._turns) if here not in turn.bystanders), None)

    @contextmanager
    def taken(self, turn: _Turn) -> Iterator[None]:
        try:
            self.take(turn)
            yield
        finally:
            self._leave(turn)

    def take(self, turn: _Turn) -> ModuleType:
        with self._lock:
            module = self._module or self._put()
            self._turns = (*self._turns, turn)
            return module

    def _leave(self, turn: _Turn) -> None:
        with self._lock:
            self._turns = tuple(each for each in self._turns if each is not turn)
            if not self._turns and self._module is not None:
                self._put_back(self._module)

    def _put(self) -> _StandIn:
        name = bisector_module()
        self._seams = [_BackendSeam(resolve("inductor_backend")), _BackendSeam(resolve("other_backend"))]
        self._module = module = _StandIn(name, sys.modules.get(name))
        sys.modules[name] = module
        for seam in self._seams:
            seam.put()
        return module

    def _put_back(self, module: _StandIn) -> None:
        self._module = None
        if sys.modules.get(module.__name__) is module:  # not if somebody else has taken its place meanwhile
            if module.displaced is None:
                del sys.modules[module.__name__]
            else:
                sys.modules[module.__name__] = module.displaced
        for seam in self._seams:
            seam.put_back()
        self._seams = []


_STANDING = _Standing()


class _BackendSeam:
    """In the place of the method by which a backend of torch.compile is handed a graph."""

    def __init__(self, kind: type) -> None:
        self._kind = kind
        self._original: Callable[..., Any] = kind.__call__

    def put(self) -> None:
        self._kind.__call__ = self  # type: ignore[assignment, method-assign]

    def put_back(self) -> None:
        if vars(self._kind).get("__call__") is self:
            self._kind.__call__ = self._original

    def __get__(self, backend: Any, _: type | None = None) -> Callable[..., Any]:
        return functools.partial(self._hand_over, backend) if backend is not None else self._original

    def _hand_over(self, backend: Any, gm: Any, inputs: Any, **options: Any) -> Any:
        answers = current_answers()
        if answers is None:
            return self._original(backend, gm, inputs, **options)
        if answers.backend != _INDUCTOR:
            return resolve("lookup_backend")(answers.backend)(gm, inputs)
        if isinstance(backend, resolve("inductor_backend")):
            changes = {**(options.pop("config_patches", None) or {}), **(answers.config_change(_INDUCTOR) or {})}
            return self._original(backend, gm, inputs, **options, config_patches=changes)
        if _backends_of_programs_stay():
            return self._original(backend, gm, inputs, **options)
        made = resolve("inductor_backend")(_asked(backend, "mode"), _asked(backend, "options"), backend.dynamic)
        return made(gm, inputs)  # comes by here again


def _asked(backend: Any, what: str) -> Any:
    """The mode or the options that torch.compile was given, if it was."""
    given: Mapping[str, Any] = getattr(backend, "kwargs", {})
    return given.get(what)


def _backends_of_programs_stay() -> bool:
    """Whether the program has asked torch to leave backends of its own alone while Inductor is looked at."""
    module = "torch._inductor.config"
    option = "test_configs.bisect_keep_custom_backend_for_inductor"
    return config_is_loaded(module) and bool(config_values(module).get(option))
