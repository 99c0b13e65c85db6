"""A user's script, run as Python would run it, with the calls of a function handed to somebody on the way.

    script = Script.parse("train.py:Net.forward", ["--epochs", "1"])
    ended = script.run(on_call)        on_call(call) has the function and its arguments; what it returns is the result

The function is a name at the top level of the script: `step`, `Net.forward`, `model`, `package.step`. What is
intercepted stands in its place from the moment on when the name is bound; while `on_call` runs, and when the script has
ended, everything works as the script has it. Without a name, whatever the script gives to torch.compile is
intercepted, and torch.compile compiles nothing.

Of the script's source, one thing is changed: after each statement at its top level, we have a look at the name.
"""

from __future__ import annotations

import ast
import builtins
import difflib
import functools
import importlib.machinery
import inspect
import io
import os
import shlex
import sys
import threading
import tokenize
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from types import CodeType, FunctionType, MethodType, ModuleType, TracebackType
from typing import Any, Final

import torch

from torchsleuth import torch_compat
from torchsleuth.errors import NeverCalled, NoSuchFunction, ScriptError, in_words

_LOOK: Final = "__sleuth_look__"
"""What is called after each statement."""
_MINE: Final = "sleuth_stands_in"
"""An attribute by which what stands in is known."""
_OURS: Final = "sleuth_compiles"
"""An attribute by which what stands in the place of torch.compile is known."""
_NEAR, _MOST = 0.5, 12
_MISSING: Final = object()


@dataclass(frozen=True)
class Call:
    """One call of a function: whoever gets it decides what is returned."""

    name: str
    fn: Callable[..., Any]
    """A function, a bound method, or a module. Calling it is what the script wanted."""
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    dynamic: bool | None = None
    """As the script has told torch.compile, if it has."""

    @property
    def key(self) -> tuple[int, ...]:
        """The same for each call of the same function. Only while the function is alive."""
        return _key(self.fn)

    def go(self) -> Any:
        """What the script wanted."""
        return self.fn(*self.args, **self.kwargs)


def _key(fn: Any) -> tuple[int, ...]:
    return (id(fn.__func__), id(fn.__self__)) if isinstance(fn, MethodType) else (id(fn),)


class Enough(BaseException):
    """Raised in `on_call`, it ends the script: all is known that was to be known.

    In a thread of the script's it ends that thread, without a word, and the script at its next call or statement.
    """


class OutOfTime(BaseException):
    """Raised anywhere in a script, it ends it: it has had its time."""


@dataclass(frozen=True)
class Ended:
    """How a script ended."""

    calls: int
    """How many calls were handed on."""
    code: int = 0
    """The exit code of the script, had it run by itself."""
    error: BaseException | None = None
    """What nobody in the script caught."""
    uncalled: tuple[str, ...] = ()
    """What was given to torch.compile, and never called."""
    compiles: bool = False
    """It was seen to call torch.compile."""

    @property
    def words(self) -> str:
        """How it ended, if that is worth a word."""
        if isinstance(self.error, KeyboardInterrupt):
            return "the script was interrupted"
        if isinstance(self.error, OutOfTime):
            return f"the script was stopped after {self.error}{_where(self.error)}"
        if self.error is not None:
            return f"the script stops with {in_words(self.error)}{_where(self.error)}"
        return f"the script ends with exit code {self.code}" if self.code else ""


@dataclass(frozen=True)
class Script:
    """A script with its arguments, and the function in it that is looked for ("": whatever it compiles)."""

    path: str
    function: str = ""
    arguments: tuple[str, ...] = ()

    @classmethod
    def parse(cls, words: str, arguments: Sequence[str] = ()) -> Script:
        """SCRIPT, or SCRIPT:function. Refuses what is not there."""
        path, function = words, ""
        if not os.path.exists(words) and ":" in words:
            path, _, function = words.rpartition(":")
        if not os.path.exists(path):
            raise ScriptError(
                f"there is no script {path!r}",
                cause=f"{os.path.abspath(path)} does not exist",
                remedy="name a script, and a function in it after a colon: train.py:step",
            )
        if os.path.isdir(path):
            raise ScriptError(
                f"{path!r} is a folder",
                cause="a script is one file",
                remedy=f"name the file: {os.path.join(path, '__main__.py')}",
            )
        if words != path and not all(part.isidentifier() for part in function.split(".")):
            raise NoSuchFunction(
                f"{function!r} is no name of a function",
                cause="a name has letters, digits and underscores, with dots between",
                remedy="name it as the script does: train.py:step, train.py:Net.forward, train.py:model",
            )
        return cls(path, function, tuple(arguments))

    def __str__(self) -> str:
        return f"{self.path}:{self.function}" if self.function else self.path

    def run(self, on_call: Callable[[Call], Any]) -> Ended:
        """Run it to its end, or to `Enough`. What the script raises is told by what is returned.

        Raises a `ScriptError` if nothing was called: there is no such function, or nobody calls it.
        """
        tree, code = self._compiled()
        board = _Switchboard(on_call)
        with self._as_main() as main, board.closed_in_the_end():
            error, exit_code = _until_it_ends(lambda: self._execute(code, vars(main), board))
            if error is None and not exit_code and not board.total:
                error, exit_code = _until_it_ends(board.call_what_needs_no_arguments)
            if board.is_enough:  # what becomes of it without the threads that we have ended is not its own
                error, exit_code = None, 0
            uncalled = tuple(name for name in board.known if not board.calls[name])
            ended = Ended(board.total, exit_code, error, uncalled, board.compiles)
            if not board.total:
                raise self._nothing_called(board, vars(main), tree, ended) from error
        return ended

    # ---- running it ----------------------------------------------------------------------------------------

    def _execute(self, code: CodeType, namespace: dict[str, Any], board: _Switchboard) -> None:
        with ExitStack() as stack:
            if self.function:
                name = _Name(self.function, namespace, board)
                stack.enter_context(_attribute(builtins, _LOOK, name.look))
                stack.enter_context(_attribute(torch, "compile", board.compile_noted(torch.compile)))
            else:
                stack.enter_context(_attribute(torch, "compile", board.compile_instead(torch.compile)))
            stack.callback(board.wait)
            exec(code, namespace)

    def _compiled(self) -> tuple[ast.Module, CodeType]:
        try:
            with io.open_code(os.path.abspath(self.path)) as file:
                text = file.read()
            _must_be_decodable(text)
            tree = ast.parse(text, filename=self._file)
            names = _names_in(tree)
            if self.function and self.function.partition(".")[0] not in names and "*" not in names:
                raise self._unknown(tree, {}, "no such name occurs in it")
            if self.function:
                _look_after_each(tree)
            return tree, compile(tree, self._file, "exec", dont_inherit=True)
        except (OSError, SyntaxError, ValueError) as error:
            raise ScriptError(
                f"the script {self.path!r} cannot be read",
                cause=in_words(error),
                remedy=f"see that it runs by itself first: python {self.path}",
            ) from error

    @property
    def _file(self) -> str:
        return os.path.join(os.getcwd(), self.path)

    @contextmanager
    def _as_main(self) -> Iterator[ModuleType]:
        """`__main__`, `sys.argv` and `sys.path[0]` are the script's, inside."""
        before = sys.argv, list(sys.path), sys.modules["__main__"]
        main = ModuleType("__main__")
        loader = importlib.machinery.SourceFileLoader("__main__", self._file)
        vars(main).update(
            __builtins__=builtins, __annotations__={}, __file__=self._file, __cached__=None, __loader__=loader
        )
        sys.argv, sys.modules["__main__"] = [self.path, *self.arguments], main
        if not getattr(sys.flags, "safe_path", False):
            sys.path[0:1] = [os.path.dirname(os.path.realpath(self.path))]
        try:
            yield main
        finally:
            sys.argv, sys.path[:], sys.modules["__main__"] = before

    # ---- what was not there --------------------------------------------------------------------------------

    def _nothing_called(
        self, board: _Switchboard, namespace: dict[str, Any], tree: ast.Module, ended: Ended
    ) -> ScriptError:
        if isinstance(ended.error, ImportError) and "relative import" in str(ended.error):
            return self._part_of_a_package(ended)
        if not board.known and self.function:
            if ended.words and self.function.partition(".")[0] in _bound_in(tree):
                what = f"{self.path} stops before it defines {self.function}"
                return NeverCalled(what, cause=ended.words, remedy=self._before_the_call(ended))
            nothing = board.unfit or f"{self.path} binds no such name at its top level"
            return self._unknown(tree, namespace, ended.words or nothing)
        remedy = f"call {self.function or 'what it compiles'} in the script, with arguments as they usually are"
        remedy = self._before_the_call(ended) if ended.words else remedy
        if not board.known:
            return NeverCalled(
                f"{self.path} gives nothing to torch.compile",
                cause=ended.words or "it ran to its end, and torch.compile was not called",
                remedy=f"name a function of the script: {self.path}:function",
            )
        name = self.function or ", ".join(board.known)
        return NeverCalled(
            f"{self.path} never calls {name}", cause=ended.words or "it ran to its end without a call", remedy=remedy
        )

    def _before_the_call(self, ended: Ended) -> str:
        """What to do about a script that has ended too soon."""
        if isinstance(ended.error, OutOfTime):
            return "give it more time (--deadline SECONDS), or a script that comes to the call sooner"
        command = shlex.join(["python", self.path, *self.arguments])
        return f"see that it runs by itself first: {command}; what it is to be given goes behind --: {self} -- ARGS"

    def _part_of_a_package(self, ended: Ended) -> NeverCalled:
        folder, module = os.path.split(os.path.realpath(self.path))
        parts = [os.path.splitext(module)[0]]
        while os.path.exists(os.path.join(folder, "__init__.py")):
            folder, package = os.path.split(folder)
            parts.insert(0, package)
        name = self.function.partition(".")[0]
        imported = f"from {'.'.join(parts)} import {name}" if name else f"import {'.'.join(parts)}"
        return NeverCalled(
            f"{self.path} is part of a package, and no script by itself",
            cause=ended.words,
            remedy=f"write a script in {folder} that imports it and calls what is to be looked at: {imported}",
        )

    def _unknown(self, tree: ast.Module, namespace: dict[str, Any], cause: str) -> NoSuchFunction:
        there = _functions(tree, namespace)
        last = {name: name.rpartition(".")[2] for name in there}
        near = difflib.get_close_matches(self.function, there, n=3, cutoff=_NEAR)
        near += [name for name in there if name not in near and last[name] == self.function.rpartition(".")[2]]
        if near:
            remedy = f"did you mean {' or '.join(f'{self.path}:{name}' for name in near[:3])}?"
        elif there:
            remedy = f"name one that is there: {', '.join(there[:_MOST])}{', …' if len(there) > _MOST else ''}"
        else:
            remedy = "name a function, a Class.method or a module that the script has at its top level"
        return NoSuchFunction(f"{self.path} has no function {self.function!r}", cause=cause, remedy=remedy)


def _until_it_ends(run: Callable[[], None]) -> tuple[BaseException | None, int]:
    """What ended it that nobody caught, and the exit code that Python would give."""
    try:
        run()
    except Enough:
        return None, 0
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            return None, leaving.code or 0
        print(leaving.code, file=sys.stderr)
        return None, 1
    except BaseException as uncaught:  # noqa: BLE001 - this is where the script ends, whatever ends it
        uncaught.__traceback__ = _from_the_script_on(uncaught.__traceback__)
        return uncaught, 130 if isinstance(uncaught, KeyboardInterrupt) else 1
    return None, 0


def _from_the_script_on(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames in front that are ours."""
    while trace is not None and trace.tb_frame.f_globals.get("__name__") == __name__:
        trace = trace.tb_next
    return trace


def _where(error: BaseException) -> str:
    main = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    return f" ({os.path.basename(main[0].filename)}:{main[0].lineno})" if main else ""


@contextmanager
def _attribute(holder: Any, name: str, value: Any) -> Iterator[None]:
    """Something else in an attribute, for a while."""
    before = getattr(holder, name, _MISSING)
    setattr(holder, name, value)
    try:
        yield
    finally:
        if before is _MISSING:
            delattr(holder, name)
        else:
            setattr(holder, name, before)


# ---- the source ------------------------------------------------------------------------------------------


def _must_be_decodable(text: bytes) -> None:
    """Refuses what Python refuses, comments included: bytes that are not of the encoding which is declared."""
    encoding, _ = tokenize.detect_encoding(io.BytesIO(text).readline)
    try:
        text.decode(encoding)
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        declared = "no other encoding is declared" if encoding.startswith("utf-8") else "that is what is declared"
        raise SyntaxError(f"it is not in {encoding} (line {line}), and {declared}") from error


def _look_after_each(tree: ast.Module) -> None:
    """Put a look after each statement that is executed at the top level, in whatever block."""
    blocks: list[ast.AST] = [tree]
    while blocks:
        block = blocks.pop()
        if isinstance(block, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        for field_name in ("body", "orelse", "finalbody", "handlers", "cases"):
            body = getattr(block, field_name, None)
            if not isinstance(body, list):
                continue
            blocks += body
            if field_name not in ("handlers", "cases"):
                setattr(block, field_name, [one for statement in body for one in _and_a_look(statement)])


def _and_a_look(statement: ast.stmt) -> Iterator[ast.stmt]:
    yield statement
    is_future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
    is_constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)  # the docstring
    if is_future or is_constant or isinstance(statement, (ast.Pass, ast.Break, ast.Continue, ast.Raise)):
        return
    look = ast.Expr(ast.Call(ast.Name(_LOOK, ast.Load()), [], []))
    line = statement.end_lineno or statement.lineno
    for node in ast.walk(look):
        if isinstance(node, (ast.stmt, ast.expr)):
            node.lineno = node.end_lineno = line
            node.col_offset = node.end_col_offset = 0
    yield look


def _names_in(tree: ast.Module) -> set[str]:
    """Every name that occurs in the source, strings included; "*" if it imports names that we cannot know."""
    found: set[str] = set()
    for node in ast.walk(tree):
        for attribute in ("id", "name", "asname", "attr", "value"):
            value = getattr(node, attribute, None)
            if isinstance(value, str):
                found.update((value, value.partition(".")[0]))
    return found


def _bound_in(tree: ast.Module) -> set[str]:
    """The names that the source binds, wherever."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).partition(".")[0])
    return found


def _functions(tree: ast.Module, namespace: dict[str, Any]) -> list[str]:
    """Names that could have been asked for: the script's own functions, methods and modules."""
    found: dict[str, None] = {}
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found[node.name] = None
        elif isinstance(node, ast.ClassDef):
            methods = (each.name for each in node.body if isinstance(each, ast.FunctionDef))
            found.update({f"{node.name}.{name}": None for name in methods if not name.startswith("__")})
    own = [name for name, value in namespace.items() if isinstance(value, torch.nn.Module)]
    own += [name for name, value in namespace.items() if isinstance(value, FunctionType)]
    found.update(dict.fromkeys(name for name in own if not name.startswith("_")))
    return list(found)


# ---- what stands in --------------------------------------------------------------------------------------


class _Switchboard:
    """Every call of what is intercepted comes through here."""

    def __init__(self, on_call: Callable[[Call], Any]) -> None:
        self.is_enough = False
        """All is known: the script is to end."""
        self.compiles = False
        """The script has called torch.compile."""
        self.calls: Counter[str] = Counter()
        self.known: dict[str, Callable[..., Any]] = {}
        """What stands in for each function, by its name."""
        self.put: list[Callable[[], AbstractContextManager[None]]] = []
        """How to have everything as the script has it, for a while."""
        self.unfit = ""
        """Why what has the name cannot be intercepted."""
        self._on_call = on_call
        self._at_work = threading.Lock()
        """Held while a call is dealt with: one at a time, whatever thread it is in."""
        self._closed = False
        self._thread = threading.current_thread()
        self._modules: dict[int, torch.nn.Module] = {}
        self._called_instead: dict[int, Callable[..., Any]] = {}
        """By module, what is called when the module is."""
        self._dynamic: dict[tuple[int, ...], tuple[Any, bool]] = {}
        """What the script has told torch.compile of sizes, by what it gave it. That is kept alive."""

    @property
    def total(self) -> int:
        return sum(self.calls.values())

    @contextmanager
    def closed_in_the_end(self) -> Iterator[None]:
        """After it, what stands in somewhere calls what it stands for: `on_call` hears of nothing more."""
        try:
            yield
        finally:
            self._closed = True

    @property
    def busy(self) -> bool:
        """A call is being dealt with: whatever it calls, and whatever is called beside it, is none of our business."""
        return self._closed or self._at_work.locked()

    def call(self, call: Call) -> Any:
        if self._closed or not self._at_work.acquire(blocking=False):
            return call.go()
        try:
            self.go_on_unless_enough()
            self.calls[call.name] += 1
            with ExitStack() as stack:
                for off in self.put:
                    stack.enter_context(off())
                dynamic = self._dynamic_of(call.fn) if call.dynamic is None else call.dynamic
                return self._on_call(replace(call, dynamic=dynamic))
        except Enough:
            self.is_enough = True
            if threading.current_thread() is not self._thread:
                raise SystemExit from None  # ends the thread, and nobody hears of it
            raise
        finally:
            self._at_work.release()

    def wait(self) -> None:
        """Another thread may be in a call, when the script has come to its end."""
        with self._at_work:
            pass

    def go_on_unless_enough(self) -> None:
        if self.is_enough:
            raise Enough

    def stand_in(self, name: str, fn: Any, dynamic: bool | None = None, *, method: bool = False) -> Callable[..., Any]:
        """A function that hands its calls on. `method`: the first argument is the one that it is a method of."""
        kept = functools.WRAPPER_UPDATES if isinstance(fn, FunctionType) else ()

        @functools.wraps(fn, updated=kept)
        def stand_in(*args: Any, **kwargs: Any) -> Any:
            if self.busy:
                return fn(*args, **kwargs)
            if args and (method or _is_method_of(fn, args[0])):
                return self.call(Call(name, MethodType(fn, args[0]), args[1:], kwargs, dynamic))
            return self.call(Call(name, fn, args, kwargs, dynamic))

        setattr(stand_in, _MINE, self)
        self.known[name] = stand_in
        return stand_in

    def is_mine(self, value: Any) -> bool:
        """Whether it stands in for something, or is a module whose calls are seen already."""
        return getattr(value, _MINE, None) is self or id(value) in self._modules

    def watch_module(self, name: str, module: torch.nn.Module, stand_in: Callable[..., Any] | None = None) -> None:
        """See the calls of a module, whoever calls it."""
        self._modules[id(module)] = module
        if torch_compat.is_compiled_module(module):
            module.forward = stand_in or self.stand_in(name, torch_compat.plain_function(module))
            return
        self._called_instead[id(module)] = stand_in or _unseen_by_dynamo(self.stand_in(name, module))
        torch_compat.call_instead(module, self._called_instead[id(module)])
        self.put.append(lambda: torch_compat.called_plainly(module))

    def call_what_needs_no_arguments(self) -> None:
        for stand_in in list(self.known.values()):
            fn = getattr(stand_in, "__wrapped__", stand_in)
            try:
                inspect.signature(fn.forward if isinstance(fn, torch.nn.Module) else fn).bind()
            except (TypeError, ValueError):
                continue
            stand_in()

    # ---- torch.compile --------------------------------------------------------------------------------------

    def compile_noted(self, compile: Callable[..., Any]) -> Callable[..., Any]:
        """What stands in the place of torch.compile if it is to compile: it is noted who calls it, and how."""

        @functools.wraps(compile)
        def compile_as_ever(model: Any = None, **options: Any) -> Any:
            self.compiles = self.compiles or not self.busy
            if model is None:
                return functools.partial(compile_as_ever, **options)
            dynamic = options.get("dynamic")
            if not self.busy and isinstance(dynamic, bool):
                plain = self._as_written(model)
                self._dynamic[_key(plain)] = plain, dynamic
            made = compile(model, **{name: _copied(value) for name, value in options.items()})
            module = torch_compat.module_of_call(model)
            return made if module is None or self.busy else self._called_instead.get(id(module), made)

        return _as_ours(compile_as_ever)

    def _as_written(self, model: Any) -> Any:
        """What torch.compile was given, without what we have put around it."""
        plain = torch_compat.plain_function(model)
        while getattr(plain, _MINE, None) is self:
            plain = plain.__wrapped__
        module = torch_compat.module_of_call(plain)
        return plain if module is None else module

    def _dynamic_of(self, fn: Any) -> bool | None:
        """What the script has told torch.compile of the sizes of a function, or of the module that it is part of."""
        parts = [fn]
        if isinstance(fn, MethodType):
            parts += [fn.__self__, fn.__func__]
        elif isinstance(fn, torch.nn.Module):
            parts += [self._as_written(fn.forward), type(fn).forward]
        return next((self._dynamic[_key(part)][1] for part in parts if _key(part) in self._dynamic), None)

    def compile_instead(self, compile: Callable[..., Any]) -> Callable[..., Any]:
        """What stands in the place of torch.compile."""

        @functools.wraps(compile)
        def compile_nothing(model: Any = None, **options: Any) -> Any:
            self.compiles = self.compiles or not self.busy
            if model is None:
                return functools.partial(compile_nothing, **options)
            made = compile(model, **{name: _copied(value) for name, value in options.items()})
            return made if self.busy or options.get("disable") else self._given(model, made, options.get("dynamic"))

        return _as_ours(compile_nothing)

    def _given(self, model: Any, made: Any, dynamic: bool | None) -> Any:
        """Torch.compile was given `model`, and made this of it."""
        plain = torch_compat.plain_function(model)
        if self.is_mine(plain):
            return plain
        if torch_compat.is_compiled_module(made):
            self.watch_module("", made, self.stand_in(type(plain).__qualname__, plain, dynamic))
            return made
        module = torch_compat.module_of_call(plain)
        if module is not None:  # it is going to be put where `call_instead` puts it
            self.put.append(lambda: torch_compat.called_plainly(module))
            return self.stand_in(type(module).__qualname__, module, dynamic)
        if inspect.isbuiltin(plain) or inspect.isclass(plain):
            return made
        return self.stand_in(_name_of(plain), plain, dynamic)


class _Name:
    """A name of the script's, looked at again and again: whatever is bound to it is intercepted."""

    def __init__(self, path: str, namespace: dict[str, Any], board: _Switchboard) -> None:
        self._path = path
        self._parts = path.split(".")
        self._namespace = namespace
        self._board = board

    def look(self) -> None:
        if self._board.busy:
            return
        self._board.go_on_unless_enough()
        holder, value = self._find()
        if value is _MISSING or self._board.is_mine(value):
            return
        name = self._parts[-1]
        if getattr(value, _OURS, False) is True:
            self._board.unfit = f"{self._path} is what compiles functions: it is none that could be looked at itself"
        elif isinstance(value, type):
            self._watch_class(value)
        elif isinstance(value, torch.nn.Module):
            self._board.watch_module(self._path, value)
        elif isinstance(holder, type):
            self._watch_method(holder, name)
        elif callable(value):
            plain = torch_compat.plain_function(value)
            mine = self._board.is_mine(plain)
            stand_in = plain if mine else _unseen_by_dynamo(self._board.stand_in(self._path, plain))
            self._put(_Item(holder, name) if holder is self._namespace else _Attribute(holder, name), stand_in)
        else:
            self._board.unfit = f"{self._path} is no function: it is of the type {type(value).__qualname__}"

    def _find(self) -> tuple[Any, Any]:
        """The object that has it, and what it has."""
        holder: Any = None
        value: Any = self._namespace
        for part in self._parts:
            holder = value
            value = value.get(part, _MISSING) if value is self._namespace else getattr(value, part, _MISSING)
            if value is _MISSING:
                break
        return holder, value

    def _watch_class(self, kind: type) -> None:
        """A class was named: what is called is an object of it."""
        name = "forward" if issubclass(kind, torch.nn.Module) else "__call__"
        if not any(name in vars(each) for each in kind.__mro__):
            self._board.unfit = f"{self._path} is a class whose objects are not called"
        elif not self._board.is_mine(getattr(kind, name)):
            self._watch_method(kind, name)

    def _watch_method(self, kind: type, name: str) -> None:
        found = inspect.getattr_static(kind, name)
        board, path = self._board, self._path
        if isinstance(found, staticmethod):
            stand_in: Any = staticmethod(_unseen_by_dynamo(board.stand_in(path, found.__func__)))
        elif isinstance(found, classmethod):
            stand_in = classmethod(_unseen_by_dynamo(board.stand_in(path, found.__func__, method=True)))
        elif callable(found):
            plain = torch_compat.plain_function(found)
            stand_in = _unseen_by_dynamo(board.stand_in(path, plain, method=True))
        else:
            self._board.unfit = f"{path} is no method: it is of the type {type(found).__qualname__}"
            return
        self._put(_Attribute(kind, name), stand_in)

    def _put(self, place: _Item | _Attribute, stand_in: Any) -> None:
        """Put it there. While a call is dealt with, what was there before is there again."""
        original = place.get()
        place.set(stand_in)

        @contextmanager
        def off() -> Iterator[None]:
            if place.get() is not stand_in:  # the script has something else there by now
                yield
                return
            place.set(original)
            try:
                yield
            finally:
                if place.get() is original:
                    place.set(stand_in)

        self._board.put.append(off)


class _Item:
    """A place in a dict."""

    def __init__(self, holder: dict[str, Any], name: str) -> None:
        self.holder, self.name = holder, name

    def get(self) -> Any:
        return self.holder.get(self.name, _MISSING)

    def set(self, value: Any) -> None:
        self.holder[self.name] = value


class _Attribute:
    """A place in an object or a class."""

    def __init__(self, holder: Any, name: str) -> None:
        self.holder, self.name = holder, name

    def get(self) -> Any:
        return vars(self.holder).get(self.name, _MISSING)

    def set(self, value: Any) -> None:
        if value is not _MISSING:
            setattr(self.holder, self.name, value)
        elif self.name in vars(self.holder):
            delattr(self.holder, self.name)


def _as_ours(compile: Callable[..., Any]) -> Callable[..., Any]:
    """So that it is known for what it is."""
    setattr(compile, _OURS, True)
    return compile


def _unseen_by_dynamo(stand_in: Callable[..., Any]) -> Callable[..., Any]:
    """So that what the script compiles does not have us in its graphs."""
    hidden: Callable[..., Any] = torch.compiler.disable(stand_in)
    return hidden


def _is_method_of(fn: Any, first: Any) -> bool:
    """Whether a plain function was written in a class, and is called for an object of it."""
    if not isinstance(fn, FunctionType):
        return False
    home = fn.__qualname__.rpartition(".")[0]
    named = [kind for kind in type(first).__mro__ if kind.__qualname__ == home and kind.__module__ == fn.__module__]
    return bool(named) and isinstance(first, named[0])


def _name_of(fn: Any) -> str:
    name = getattr(fn, "__qualname__", None) or getattr(fn, "__name__", None) or type(fn).__qualname__
    return str(name).replace("<locals>.", "")


def _copied(value: Any) -> Any:
    return dict(value) if isinstance(value, dict) else value  # torch takes things out of its `options`
