"""Scripts that are run as Python runs them, with the calls of one function handed over. Covers: F12"""

from __future__ import annotations

import io
import os
import sys
import textwrap
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch

from torchsleuth.errors import NeverCalled, NoSuchFunction, ScriptError
from torchsleuth.frontend.scripts import Call, Ended, Enough, Script

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a file into the working folder, and gives its name."""
    monkeypatch.chdir(tmp_path)

    def script(text: str, name: str = "script.py") -> str:
        (tmp_path / name).write_text(textwrap.dedent(text))
        return name

    return script


class Listener:
    """Makes each call, and notes it."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.results: list[Any] = []

    def __call__(self, call: Call) -> Any:
        self.calls.append(call)
        result = call.go()
        self.results.append(result)
        return result

    @property
    def names(self) -> list[str]:
        return [call.name for call in self.calls]

    @property
    def arguments(self) -> list[tuple[Any, ...]]:
        return [call.args for call in self.calls]


def heard(words: str, *arguments: str) -> tuple[Listener, Ended]:
    listener = Listener()
    return listener, Script.parse(words, arguments).run(listener)


# ---- which script, which function ------------------------------------------------------------------------------


def test_a_script_and_a_function_are_named_with_a_colon_between(write: Write) -> None:
    name = write("pass")
    assert Script.parse(f"{name}:Net.forward", ["--epochs", "1"]) == Script(name, "Net.forward", ("--epochs", "1"))
    assert Script.parse(name) == Script(name)
    assert (str(Script.parse(f"{name}:step")), str(Script.parse(name))) == (f"{name}:step", name)


def test_a_file_with_a_colon_in_its_name_is_that_file(write: Write) -> None:
    assert Script.parse(write("pass", "odd:step")) == Script("odd:step")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("nothing.py", "there is no script 'nothing.py'"),
        ("nothing.py:step", "there is no script 'nothing.py'"),
        (".", "is a folder"),
        ("script.py:no-name", "is no name of a function"),
        ("script.py:", "is no name of a function"),
        ("script.py:a..b", "is no name of a function"),
    ],
)
def test_what_is_no_script_is_refused(write: Write, words: str, said: str) -> None:
    write("pass")
    with pytest.raises(ScriptError, match=said) as raised:
        Script.parse(words)
    assert raised.value.remedy


def test_a_script_that_does_not_parse_is_refused_with_the_line(write: Write) -> None:
    with pytest.raises(ScriptError, match="cannot be read") as raised:
        heard(write("x = 1\nx ="))
    assert raised.value.cause.count("line 2") == 1


def test_a_script_in_no_encoding_that_it_declares_is_refused_as_python_refuses_it(write: Write, tmp_path: Path) -> None:
    name = write("")
    (tmp_path / name).write_bytes(b"def f(x): pass\n# caf\xe9\nf(1)\n")
    with pytest.raises(ScriptError, match="cannot be read") as raised:
        heard(f"{name}:f")
    assert "not in utf-8 (line 2)" in raised.value.cause
    (tmp_path / name).write_bytes(b"# coding: latin-1\ndef f(x): pass\n# caf\xe9\nf('\xe9')\n")
    assert heard(f"{name}:f")[0].arguments == [("é",)]


@pytest.mark.parametrize("function", ["", ":f", ":unheard_of.f"])
def test_a_module_of_a_package_is_said_to_be_that(write: Write, tmp_path: Path, function: str) -> None:
    (tmp_path / "outer" / "inner").mkdir(parents=True)
    write("", "outer/__init__.py")
    write("", "outer/inner/__init__.py")
    name = write("from . import other\ndef f(x): return x\nunheard_of = f\nf(1)\n", "outer/inner/main.py")
    with pytest.raises(NeverCalled, match="is part of a package") as raised:
        heard(f"{name}{function}")
    assert "relative import" in raised.value.cause
    imported = (
        f"from outer.inner.main import {function[1:].partition('.')[0]}" if function else "import outer.inner.main"
    )
    assert raised.value.remedy.endswith(imported)
    assert str(tmp_path) in raised.value.remedy


def test_what_compiles_cannot_be_named_itself(write: Write) -> None:
    with pytest.raises(NoSuchFunction) as raised:
        heard(f"{write('import torch; torch.compile(lambda x: x)')}:torch.compile")
    assert "is what compiles functions" in raised.value.cause


# ---- it is run as Python runs it -------------------------------------------------------------------------------


def test_a_script_is_main_with_its_own_arguments_and_folder(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", ["/somewhere", *sys.path])
    (tmp_path / "below").mkdir()
    name = write(
        """
        import sys
        def step(*args): return args
        if __name__ == "__main__":
            step(sys.argv, sys.path[0], __file__, sys.modules["__main__"].__dict__ is globals(), __builtins__)
        """,
        "below/script.py",
    )
    before = sys.argv, list(sys.path), sys.modules["__main__"]
    listener, ended = heard(f"{name}:step", "--epochs", "1")
    argv, folder, file, is_main, _ = listener.arguments[0]
    assert (argv, is_main) == ([name, "--epochs", "1"], True)
    assert folder == os.path.realpath(tmp_path / "below")
    assert file == str(tmp_path / "below" / "script.py")
    assert ended == Ended(1)
    assert (sys.argv, sys.path, sys.modules["__main__"]) == before


def test_lines_of_a_traceback_are_those_of_the_file(write: Write) -> None:
    """What we put between statements has no line of its own."""
    name = write(
        '''
        """A docstring."""
        from __future__ import annotations
        def step(x: Unknown):
            return x
        for _ in range(1):
            step(1)
            pass
        raise ValueError("the end")
        '''
    )
    _, ended = heard(f"{name}:step")
    assert isinstance(ended.error, ValueError)
    assert (ended.calls, ended.code) == (1, 1)
    assert ended.words == "the script stops with ValueError: the end (script.py:9)"


@pytest.mark.parametrize(
    ("leaving", "code", "words"),
    [
        ("sys.exit()", 0, ""),
        ("sys.exit(0)", 0, ""),
        ("sys.exit(3)", 3, "the script ends with exit code 3"),
        ("sys.exit('no more')", 1, "the script ends with exit code 1"),
        ("raise KeyboardInterrupt", 130, "the script was interrupted"),
    ],
)
def test_a_script_that_leaves_has_ended(
    write: Write, capsys: pytest.CaptureFixture[str], leaving: str, code: int, words: str
) -> None:
    name = write(f"import sys\ndef step(): pass\nstep()\n{leaving}\nstep()\n")
    listener, ended = heard(f"{name}:step")
    assert (len(listener.calls), ended.code, ended.words) == (1, code, words)
    assert capsys.readouterr().err == ("no more\n" if "no more" in leaving else "")


def test_an_error_that_the_script_handles_goes_to_it(write: Write) -> None:
    name = write(
        """
        def step(x): raise ValueError(x)
        try:
            step(1)
        except ValueError as error:
            assert error.args == (1,)
        """
    )
    _, ended = heard(f"{name}:step")
    assert ended == Ended(1)


def test_what_on_call_returns_is_the_result(write: Write) -> None:
    name = write("def step(x): return x\nassert step(1) == 'something else'\n")
    assert Script.parse(f"{name}:step").run(lambda _: "something else") == Ended(1)


def test_enough_ends_the_script_whatever_it_catches(write: Write) -> None:
    name = write(
        """
        def step(): pass
        try:
            step()
        except Exception:
            pass
        raise AssertionError("not reached")
        """
    )

    def enough(_: Call) -> None:
        raise Enough

    assert Script.parse(f"{name}:step").run(enough) == Ended(1)


# ---- names -----------------------------------------------------------------------------------------------------


def test_a_function_is_intercepted_whoever_calls_it(write: Write) -> None:
    name = write(
        """
        def step(x, *, scale=1): return x * scale
        def loop(): return step(2, scale=3)
        assert (step(1), loop()) == (1, 6)
        """
    )
    listener, _ = heard(f"{name}:step")
    assert [(call.args, call.kwargs) for call in listener.calls] == [((1,), {}), ((2,), {"scale": 3})]
    assert listener.calls[0].key == listener.calls[1].key


def test_a_call_inside_of_a_call_is_part_of_it(write: Write) -> None:
    """While a call is dealt with, everything is as the script has it."""
    name = write(
        """
        def step(n): return 1 if n == 0 else n * step(n - 1)
        assert step(3) == 6
        """
    )
    listener, _ = heard(f"{name}:step")
    assert listener.arguments == [(3,)]
    assert listener.calls[0].fn.__globals__["step"] is not listener.calls[0].fn  # it stands in again


def test_a_name_that_is_bound_anew_is_intercepted_anew(write: Write) -> None:
    name = write(
        """
        def step(): return 1
        step()
        if True:
            def step(): return 2
        step()
        step = lambda: 3
        step()
        """
    )
    listener, _ = heard(f"{name}:step")
    assert listener.results == [1, 2, 3]


def test_a_compiled_function_is_handed_over_as_it_was_written(write: Write) -> None:
    name = write(
        """
        import torch
        @torch.compile(backend="eager")
        def step(x): return x + 1
        step(torch.ones(2))
        """
    )
    listener, _ = heard(f"{name}:step")
    assert listener.calls[0].fn.__code__.co_name == "step"
    assert not hasattr(listener.calls[0].fn, "_torchdynamo_orig_callable")


COMPILED_WITH_SYMBOLS = """
    import torch
    class Net(torch.nn.Module):
        def forward(self, x): return x + 1
    net = Net()
    def step(x): return x + 1
    def plain(x): return x + 1
    @torch.compile(dynamic=True, backend="eager")
    def decorated(x): return x + 1
    fast = torch.compile(step, dynamic=True, backend="eager")
    compiled = torch.compile(net, dynamic=True, backend="eager")
    static = torch.compile(dynamic=False, backend="eager")(lambda x: x + 1)
    in_place = Net()
    in_place.compile(dynamic=True, backend="eager")
    method = Net()
    method.forward = torch.compile(method.forward, dynamic=True, backend="eager")
    for each in (fast, compiled, decorated, static, in_place, plain, method):
        each(torch.ones(2))
"""


@pytest.mark.parametrize(
    ("function", "dynamic"),
    [
        ("step", [True]),
        ("fast", [True]),
        ("plain", [None]),
        ("decorated", [True]),
        ("compiled", [True]),
        ("net", [True]),
        ("static", [False]),
        ("in_place", [True]),
        ("Net.forward", [True, True, True]),
        ("method", [True]),
    ],
)
def test_what_the_script_tells_torch_compile_of_sizes_holds_for_what_is_named(
    write: Write, function: str, dynamic: list[bool | None]
) -> None:
    """Covers: F12"""
    listener, _ = heard(f"{write(COMPILED_WITH_SYMBOLS)}:{function}")
    assert [call.dynamic for call in listener.calls] == dynamic


METHODS = """
import torch
class Base(torch.nn.Module):
    def forward(self, x): return x + self.offset()
    def offset(self): return 1
class Net(Base):
    def offset(self): return super().offset() + 1
    @staticmethod
    def double(x): return 2 * x
    @classmethod
    def kind(cls): return cls.__name__
class Doer:
    def __call__(self, x): return -x
    value = 3
net, other, doer = Net(), Net(), Doer()
assert (net(1), other(2), net.forward(3)) == (3, 4, 5)
assert (Net.double(2), net.double(3), Net.kind(), net.kind(), doer(4)) == (4, 6, "Net", "Net", -4)
"""


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("Net.forward", [(1,), (2,), (3,)]),
        ("Base.forward", [(1,), (2,), (3,)]),
        ("Net.double", [(2,), (3,)]),
        ("Net.kind", [(), ()]),
        ("Net", [(1,), (2,), (3,)]),
        ("Doer", [(4,)]),
        ("doer", [(4,)]),
        ("net", [(1,)]),
    ],
)
def test_methods_classes_and_objects_can_be_named(
    write: Write, function: str, arguments: list[tuple[Any, ...]]
) -> None:
    listener, ended = heard(f"{write(METHODS)}:{function}")
    assert (listener.arguments, ended.words) == (arguments, "")


def test_methods_of_two_objects_are_told_apart(write: Write) -> None:
    listener, _ = heard(f"{write(METHODS)}:Net.forward")
    keys = [call.key for call in listener.calls]
    assert keys[0] == keys[2] != keys[1]
    assert all(isinstance(call.fn, MethodType) for call in listener.calls)


def test_a_module_in_a_module_can_be_named(write: Write) -> None:
    name = write(
        """
        import torch
        model = torch.nn.Sequential(torch.nn.Sequential(torch.nn.ReLU()), torch.nn.Tanh())
        model.head = model[1]
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.encoder = torch.nn.Sequential(torch.nn.ReLU())
            def forward(self, x): return self.encoder(x) + 1
        net = Net()
        net(torch.ones(2))
        net.encoder(torch.zeros(3))
        """
    )
    listener, _ = heard(f"{name}:net.encoder")
    assert [args[0].shape for args in listener.arguments] == [(2,), (3,)]
    assert all(isinstance(call.fn, torch.nn.Sequential) for call in listener.calls)


def test_a_function_of_an_imported_module_can_be_named_and_is_itself_again_in_the_end(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper = f"helper_{uuid.uuid4().hex}"
    write("def step(x): return x + 1\n", f"{helper}.py")
    name = write(f"import {helper}\nassert {helper}.step(1) == 2\n")
    listener, _ = heard(f"{name}:{helper}.step")
    module = sys.modules[helper]
    monkeypatch.delitem(sys.modules, helper)
    assert listener.arguments == [(1,)]
    assert module.step(2) == 3
    assert len(listener.calls) == 1


# ---- without a name --------------------------------------------------------------------------------------------


def test_without_a_name_whatever_is_compiled_is_intercepted_and_nothing_is_compiled(write: Write) -> None:
    name = write(
        """
        import torch
        def never(gm, inputs): raise AssertionError("compiled")
        @torch.compile(backend=never, dynamic=True)
        def one(x): return x + 1
        two = torch.compile(lambda x: x + 2, backend=never)
        @torch.compile(backend=never)
        def never_called(x): return x
        class Net(torch.nn.Module):
            def forward(self, x): return x + 3
        net = torch.compile(Net(), backend=never)
        in_place = Net()
        in_place.compile(backend=never)
        results = [each(torch.zeros(())).item() for each in (one, two, net, in_place)]
        assert results == [1, 2, 3, 3]
        assert torch.compile(torch.sin, backend=never, disable=True)(torch.zeros(())) == 0
        """
    )
    before = torch.compile
    listener, ended = heard(name)
    assert ended.words == ""
    assert listener.names == ["one", "<lambda>", "Net", "Net"]
    assert [call.dynamic for call in listener.calls] == [True, None, None, None]
    assert ended.uncalled == ("never_called",)
    assert torch.compile is before


# ---- what is not there -----------------------------------------------------------------------------------------


def test_a_name_that_is_not_there_has_near_ones(write: Write) -> None:
    name = write(METHODS)
    with pytest.raises(NoSuchFunction, match=r"has no function 'Net\.ofset'") as raised:
        heard(f"{name}:Net.ofset")
    assert raised.value.remedy.startswith(f"did you mean {name}:Net.offset or")


def test_a_name_without_its_class_is_found(write: Write) -> None:
    name = write("class Net:\n  def forward_pass(self): pass\nNet().forward_pass()\n")
    with pytest.raises(NoSuchFunction) as raised:
        heard(f"{name}:forward_pass")
    assert raised.value.remedy == f"did you mean {name}:Net.forward_pass?"


def test_names_that_could_be_meant_are_listed(write: Write) -> None:
    name = write("def first(): pass\ndef second(): pass\nfirst()\n")
    with pytest.raises(NoSuchFunction) as raised:
        heard(f"{name}:qqqqqqqq")
    assert raised.value.remedy == "name one that is there: first, second"


def test_nothing_is_run_if_the_name_does_not_occur(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NoSuchFunction):
        heard(f"{write('print(1)')}:step")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("text", "function", "cause"),
    [
        ("step = 3", "step", "step is no function: it is of the type int"),
        ("class Net:\n  step = 3\n", "Net.step", "Net.step is no method: it is of the type int"),
        ("class Net: pass\nNet()\n", "Net", "Net is a class whose objects are not called"),
        ("def outer():\n  def step(): pass\n  step()\nouter()\n", "step", "binds no such name at its top level"),
        ("raise ValueError('early')\n'step'\n", "step", "stops with ValueError: early"),
    ],
)
def test_what_cannot_be_intercepted_is_told(write: Write, text: str, function: str, cause: str) -> None:
    with pytest.raises(NoSuchFunction) as raised:
        heard(f"{write(text)}:{function}")
    assert cause in raised.value.cause


def test_a_function_that_is_never_called_is_told(write: Write) -> None:
    name = write("def step(x): return x\n")
    with pytest.raises(NeverCalled, match="never calls step") as raised:
        heard(f"{name}:step")
    assert "call step in the script" in raised.value.remedy


def test_a_script_that_ends_before_the_call_says_how(write: Write) -> None:
    name = write("def step(x): return x\nimport sys\nsys.exit(4)\nstep(1)\n")
    with pytest.raises(NeverCalled) as raised:
        heard(f"{name}:step")
    assert raised.value.cause == "the script ends with exit code 4"


@pytest.mark.parametrize(
    ("text", "function", "cause"),
    [
        (
            "raise ValueError('early')\ndef step(): pass\n",
            "step",
            "the script stops with ValueError: early (script.py:1)",
        ),
        (
            "import no_such_package\nstep = print\n",
            "step",
            "the script stops with ModuleNotFoundError: No module named",
        ),
        ("import sys\nsys.exit(2)\nclass Net: pass\n", "Net.forward", "the script ends with exit code 2"),
        ("number = input()\nfrom math import sin as step\n", "step", "the script stops with EOFError"),
    ],
)
def test_a_script_that_stops_before_it_defines_the_function_says_so(
    write: Write, monkeypatch: pytest.MonkeyPatch, text: str, function: str, cause: str
) -> None:
    """Covers: F12"""
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    name = write(text)
    with pytest.raises(NeverCalled) as raised:
        heard(f"{name}:{function}", "--epochs", "1")
    assert str(raised.value).startswith(f"{name} stops before it defines {function}")
    assert raised.value.cause.startswith(cause)
    assert "see that it runs by itself first: python script.py --epochs 1" in raised.value.remedy
    assert f"{name}:{function} -- ARGS" in raised.value.remedy


def test_a_script_that_stops_before_the_call_has_to_run_first(write: Write) -> None:
    name = write("def step(x): pass\nraise ValueError('early')\n")
    with pytest.raises(NeverCalled, match="never calls step") as raised:
        heard(f"{name}:step")
    assert "see that it runs by itself first" in raised.value.remedy


# ---- threads -----------------------------------------------------------------------------------------------------


class Slow:
    """Takes its time for each call, and has enough of them after some."""

    def __init__(self, most: int = 1_000_000) -> None:
        self.calls = 0
        self.together = 0
        self.at_once = 0
        self._most = most

    def __call__(self, call: Call) -> Any:
        self.at_once += 1
        self.together = max(self.together, self.at_once)
        self.calls += 1
        time.sleep(0.002)
        self.at_once -= 1
        if self.calls >= self._most:
            raise Enough
        return call.go()


IN_THREADS = """
import threading
made, left = [], []
def step(x):
    made.append(x)
def work():
    for number in range(20):
        step(number)
    left.append(1)
threads = [threading.Thread(target=work) for _ in range(4)]
for each in threads:
    each.start()
for each in threads:
    each.join()
print("the end", len(made), len(left))
"""


def test_calls_of_several_threads_are_dealt_with_one_at_a_time(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    """Covers: F12"""
    slow = Slow()
    ended = Script.parse(f"{write(IN_THREADS)}:step").run(slow)
    assert (slow.together, ended.calls) == (1, slow.calls)
    assert "the end 80 4" in capsys.readouterr().out  # what came meanwhile was called as the script has it


def test_enough_in_a_thread_ends_the_script_without_a_word(
    write: Write, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers: F12"""
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)  # pytest has one of its own
    slow = Slow(most=3)
    ended = Script.parse(f"{write(IN_THREADS)}:step").run(slow)
    said = capfd.readouterr()
    assert (slow.calls, ended.error, ended.code) == (3, None, 0)
    assert said.err == ""
    assert "the end" not in said.out


def test_a_call_that_a_thread_is_in_is_waited_for(write: Write) -> None:
    script = """
    import threading
    begun = threading.Event()
    def step(x):
        begun.set()
    threading.Thread(target=step, args=(1,), daemon=True).start()
    begun.wait()
    """

    def on_call(call: Call) -> Any:
        call.go()
        time.sleep(0.1)
        done.append(call.args)

    done: list[Any] = []
    Script.parse(f"{write(script)}:step").run(on_call)
    assert done == [(1,)]


def test_whether_a_script_compiles_is_noted(write: Write) -> None:
    compiles = "import torch\ndef step(x=1): return x\nother = torch.compile(len)\nstep()\n"
    assert heard(f"{write(compiles)}:step")[1].compiles
    assert not heard(f"{write('def step(x=1): return x')}:step")[1].compiles
    assert torch.compile.__module__ == "torch"


def test_a_function_that_needs_no_arguments_is_called_if_the_script_does_not(write: Write) -> None:
    listener, ended = heard(f"{write('def step(x=2): return x')}:step")
    assert (listener.results, ended) == ([2], Ended(1))


def test_a_script_that_compiles_nothing_is_told(write: Write) -> None:
    with pytest.raises(NeverCalled, match="gives nothing to") as raised:
        heard(write("x = 1"))
    assert "script.py:function" in raised.value.remedy
