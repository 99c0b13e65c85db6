"""The import check: each rule fails on a deliberate violation, legal code passes, the real tree is clean.

Each test writes a small `torchsleuth` package to a temporary directory and checks that; nothing is imported.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import check_imports

REPOSITORY = Path(__file__).parents[1]
TOPS = [top for layer in check_imports.LAYERS for top in layer]
SUBPACKAGES = ["run", "cli", "case", "reduce"]


def plant(tmp_path: Path, files: Mapping[str, str]) -> Path:
    """A `torchsleuth` package with a module for every layer, and `files` on top of it."""
    root = tmp_path / "torchsleuth"
    tree = {"__init__.py": '__version__ = "0"\n'}
    tree |= {f"{top}/__init__.py" if top in SUBPACKAGES else f"{top}.py": "" for top in TOPS}
    for name, text in {**tree, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def messages(tmp_path: Path, files: Mapping[str, str]) -> list[str]:
    """The violations in such a tree, as `file:line: message` with the file relative to the package."""
    root = plant(tmp_path, files)
    report = check_imports.check(root)
    assert report.unchecked == ()
    return [str(violation).removeprefix(f"{root}/") for violation in report.violations]


# The layers


def test_an_upward_import_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An upward import (`errors`, the lowest layer, reaching for `cli`, the highest) fails the check."""
    root = plant(tmp_path, {"errors.py": '"""Lowest."""\n\nimport torchsleuth.cli.main\n'})
    assert check_imports.main([str(root)]) == 1
    told = capsys.readouterr().err
    assert f"{root}/errors.py:3: errors (layer 1) imports upward from cli (layer 10); move what it needs" in told


@pytest.mark.parametrize("importer", TOPS)
@pytest.mark.parametrize("imported", TOPS)
def test_every_pair_of_layers(tmp_path: Path, importer: str, imported: str) -> None:
    """For all pairs: down and within is legal, up and sideways is not."""
    rank = {top: number for number, layer in enumerate(check_imports.LAYERS) for top in layer}
    file = f"{importer}/thing.py" if importer in SUBPACKAGES else f"{importer}.py"
    found = messages(tmp_path, {file: f"from torchsleuth.{imported} import thing\n"})
    if rank[imported] < rank[importer] or imported == importer:
        assert found == []
    else:
        word = "upward" if rank[imported] > rank[importer] else "sibling"
        assert len(found) == 1
        assert word in found[0]


UPWARD = {
    "import": "import torchsleuth.cli",
    "import deep": "import torchsleuth.cli.main.deep",
    "import as": "import torchsleuth.cli as c",
    "import among others": "import os, torchsleuth.cli, sys",
    "from module": "from torchsleuth.cli import main",
    "from submodule": "from torchsleuth.cli.main import app",
    "from package": "from torchsleuth import cli",
    "from package, renamed": "from torchsleuth import cli as c",
    "star": "from torchsleuth.cli import *",
    "relative": "from ..cli import main",
    "relative, deep": "from ..cli.main import app",
    "relative, package": "from .. import cli",
    "in a function": "def f():\n    from torchsleuth import cli",
    "in a method": "class C:\n    async def f(self):\n        import torchsleuth.cli",
    "under TYPE_CHECKING": "import typing\nif typing.TYPE_CHECKING:\n    from torchsleuth import cli",
    "in a try": "try:\n    import torchsleuth.cli\nexcept ImportError:\n    pass",
    "in an except": "try:\n    pass\nexcept ImportError:\n    import torchsleuth.cli",
    "import_module": "import importlib\nimportlib.import_module('torchsleuth.cli')",
    "import_module, renamed": "from importlib import import_module as load\nload('torchsleuth.cli.main')",
    "import_module, keyword": "import importlib\nimportlib.import_module(name='torchsleuth.cli')",
    "import_module, relative": "import importlib\nimportlib.import_module('..cli', __package__)",
    "import_module, anchored": "import importlib\nimportlib.import_module('.cli', package='torchsleuth')",
    "import_module, by name": "import importlib\nimportlib.import_module('...cli', __name__)",
    "__import__": "__import__('torchsleuth.cli')",
    "builtins.__import__": "import builtins\nbuiltins.__import__('torchsleuth.cli')",
    "attribute": "import torchsleuth.errors\ntorchsleuth.cli.main()",
}


@pytest.mark.parametrize("source", UPWARD.values(), ids=UPWARD.keys())
def test_an_upward_import_fails_however_it_is_spelled(tmp_path: Path, source: str) -> None:
    found = messages(tmp_path, {"run/worker.py": source})
    assert len(found) == 1
    line = 1 + source[: source.index("cli")].count("\n")
    assert found[0].startswith(f"run/worker.py:{line}: run (layer 6) imports upward from cli (layer 10)")


LEGAL = {
    "nothing": "",
    "standard library": "import os.path\nfrom collections import abc",
    "torch": "import torch\nfrom torch import fx\ntorch.compile(fx.Graph)",
    "downward": "from torchsleuth import errors, config\nimport torchsleuth.case.graphs.graph",
    "downward, used": "import torchsleuth.errors\ntorchsleuth.errors.SleuthError",
    "relative, down": "from .. import errors\nfrom ..case import Case\nfrom ..case.graph import Graph",
    "relative, own": "from . import protocol\nfrom .protocol import Query",
    "own": "from torchsleuth.run import protocol\nimport torchsleuth.run.protocol",
    "version": "from torchsleuth import __version__",
    "version, relative": "from .. import __version__",
    "computed": "import importlib\nname = 'x'\nimportlib.import_module(name)\n__import__(name)",
    "look-alike package": "import torchsleuth_plugins.cli\nfrom torchsleuthing import cli",
    "an own import_module": "def import_module(name): ...\nimport_module('torchsleuth.cli')",
}


@pytest.mark.parametrize("source", LEGAL.values(), ids=LEGAL.keys())
def test_legal_imports_pass(tmp_path: Path, source: str) -> None:
    assert messages(tmp_path, {"run/worker.py": source}) == []


@pytest.mark.parametrize(
    ("file", "source", "legal"),
    [
        ("run/__init__.py", "from .worker import work", True),
        ("run/__init__.py", "from ..errors import SleuthError", True),
        ("run/__init__.py", "from ..cli import main", False),
        ("run/deep/down.py", "from ..worker import work", True),
        ("run/deep/down.py", "from ...errors import SleuthError", True),
        ("run/deep/down.py", "from ...cli import main", False),
        ("run/deep/__init__.py", "from ...cli import main", False),
        ("run/deep/__init__.py", "from ..worker import work", True),
        ("config.py", "from .errors import ConfigError", True),
        ("config.py", "from . import errors", True),
        ("config.py", "from .cli import main", False),
        ("config.py", "from . import cli", False),
    ],
)
def test_dots_are_counted_from_the_right_package(tmp_path: Path, file: str, source: str, legal: bool) -> None:
    assert (messages(tmp_path, {file: source}) == []) is legal


@pytest.mark.parametrize("source", ["from .. import x", "from ..cli import x", "from .... import *"])
def test_a_relative_import_may_not_leave_the_package(tmp_path: Path, source: str) -> None:
    [message] = messages(tmp_path, {"config.py": source})
    assert "too many dots" in message


def test_one_line_per_violation_in_order(tmp_path: Path) -> None:
    files = {
        "errors.py": "import torchsleuth.cli\n\nfrom torchsleuth import (\n    run,\n    case,\n)\n",
        "case/a.py": "import torch._C",
    }
    assert [message.split(": ")[0] for message in messages(tmp_path, files)] == [
        "case/a.py:1",
        "errors.py:1",
        "errors.py:4",
        "errors.py:5",
    ]


def test_a_sibling_needs_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"reduce/a.py": "from torchsleuth.analyse import blame"}
    [message] = messages(tmp_path, files)
    assert "SIBLINGS_ALLOWED" in message
    monkeypatch.setattr(check_imports, "SIBLINGS_ALLOWED", {("reduce", "analyse"): "it asks who is guilty"})
    assert messages(tmp_path, files) == []
    assert len(messages(tmp_path, {"analyse.py": "from torchsleuth import reduce"})) == 1, "one direction only"


def test_the_sibling_table_does_not_allow_upward_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_imports, "SIBLINGS_ALLOWED", {("run", "cli"): "no reason is good enough"})
    assert len(messages(tmp_path, {"run/a.py": "import torchsleuth.cli"})) == 1


# The front door


@pytest.mark.parametrize("file", ["__init__.py", "__main__.py"])
@pytest.mark.parametrize(
    "source", ["from .cli.main import main", "from torchsleuth import run, errors", "import torchsleuth"]
)
def test_the_front_door_may_import_anything(tmp_path: Path, file: str, source: str) -> None:
    assert messages(tmp_path, {file: source}) == []


@pytest.mark.parametrize(
    "source",
    [
        "import torchsleuth",
        "import torchsleuth as ts",
        "from torchsleuth import watch",
        "from torchsleuth import *",
        "from .. import watch",
        "from .. import *",
        "import torchsleuth.__main__",
        "from torchsleuth import __main__",
        "__import__('torchsleuth')",
        "import torchsleuth.errors\ntorchsleuth.watch()",
    ],
)
def test_nothing_inside_uses_the_front_door(tmp_path: Path, source: str) -> None:
    [message] = messages(tmp_path, {"run/worker.py": source, "__main__.py": ""})
    assert "front door" in message


@pytest.mark.parametrize("file", ["gadgets.py", "gadgets/__init__.py", "gadgets/deep/thing.py"])
def test_a_module_without_a_layer_fails(tmp_path: Path, file: str) -> None:
    files = {file: "", "cli/a.py": "from torchsleuth import gadgets\nimport torchsleuth.gadgets.deep"}
    assert messages(tmp_path, files) == [
        f"{file}:1: torchsleuth.gadgets has no layer; give it a layer in LAYERS of tools/check_imports.py"
    ]


def test_a_subpackage_without_a_layer_is_told_once(tmp_path: Path) -> None:
    [message] = messages(tmp_path, {"gadgets/b.py": "", "gadgets/a.py": "", "gadgets/c/d.py": ""})
    assert message.startswith("gadgets/a.py:1: ")


# Private names of torch

PRIVATE = {
    "import": ("import torch._dynamo", "torch._dynamo"),
    "import as": ("import torch._inductor.config as c", "torch._inductor"),
    "from": ("from torch._inductor import config", "torch._inductor"),
    "from torch": ("from torch import _dynamo", "torch._dynamo"),
    "deep": ("from torch.utils._pytree import tree_map", "torch.utils._pytree"),
    "name": ("from torch.fx.graph import _PyTreeInfo", "torch.fx.graph._PyTreeInfo"),
    "attribute": ("import torch\ntorch._C._get_tracing_state()", "torch._C"),
    "attribute, deep": ("import torch\nx = torch.utils._pytree.tree_map", "torch.utils._pytree"),
    "alias": ("import torch as t\nt._dynamo.reset()", "torch._dynamo"),
    "alias of a module": ("from torch import fx as f\nf._symbolic_trace", "torch.fx._symbolic_trace"),
    "alias in a function": ("def f():\n    import torch as t\n    return t._C", "torch._C"),
    "assignment": ("import torch\nt = torch\nt._C", "torch._C"),
    "class": ("from torch import Tensor\nTensor._make_subclass(1)", "torch.Tensor._make_subclass"),
    "imported by a public name": ("import torch.nn.functional\ntorch._C", "torch._C"),
    "annotation": ("import torch\ndef f(x: torch._C.Graph) -> None: ...", "torch._C"),
    "decorator": ("import torch\n@torch._dynamo.disable\ndef f(): ...", "torch._dynamo"),
    "on a call": ("import torch\ntorch._C.f(1).g(torch.add)", "torch._C"),
    "inside an argument": ("import torch\nf(1).g(torch._C)", "torch._C"),
    "assigned to": ("import torch\ntorch._C.x = 1", "torch._C"),
    "TYPE_CHECKING": ("if TYPE_CHECKING:\n    import torch._ops", "torch._ops"),
    "import_module": ("import importlib\nimportlib.import_module('torch._dynamo')", "torch._dynamo"),
    "import_module, attribute": ("import importlib\nimportlib.import_module('torch')._C", "torch._C"),
    "__import__": ("__import__('torch')._C", "torch._C"),
    "getattr": ("import torch\ngetattr(torch, '_C')", "torch._C"),
    "getattr with default": ("import torch\ngetattr(torch.fx, '_lazy', None)", "torch.fx._lazy"),
}


@pytest.mark.parametrize(("source", "name"), PRIVATE.values(), ids=PRIVATE.keys())
def test_a_private_torch_name_fails_outside_torch_compat(tmp_path: Path, source: str, name: str) -> None:
    [message] = messages(tmp_path, {"run/worker.py": source})
    assert f": {name} is a private name of torch; reach it through torchsleuth.torch_compat" in message


@pytest.mark.parametrize(("source", "name"), PRIVATE.values(), ids=PRIVATE.keys())
def test_a_private_torch_name_passes_in_torch_compat(tmp_path: Path, source: str, name: str) -> None:
    assert messages(tmp_path, {"torch_compat.py": source}) == []


@pytest.mark.parametrize("file", ["__init__.py", "run/torch_compat.py", "cli/torch_compat/__init__.py"])
def test_only_the_one_torch_compat_is_exempt(tmp_path: Path, file: str) -> None:
    assert len(messages(tmp_path, {file: "import torch._dynamo"})) == 1


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.__version__",
        "import torch.__future__\ntorch.__config__.show()",
        "from torch import __version__",
        "import torch\ntorch.ops.aten._to_copy.default",
        "import torch\naten = torch.ops.aten\naten._softmax.default(1)",
        "from torch.ops import aten\naten._softmax",
        "import torch_xla._internal\nimport torchvision._C",
        "import os\nos._exit(1)",
        "torch._C",  # not an import of this file: some other thing of that name
        "def f(t):\n    return t._private",
        "import torch\nclass C:\n    def f(self): return self.torch._private",
        "where = 'torch._inductor.codegen'",  # a name to recognise in a traceback, not to import
    ],
)
def test_public_torch_names_pass(tmp_path: Path, source: str) -> None:
    assert messages(tmp_path, {"run/worker.py": source}) == []


# What we replace

FORBIDDEN_SPELLINGS = {
    "repro": "import torch._dynamo.repro",
    "repro, deep": "import torch._dynamo.repro.after_aot",
    "repro, from": "from torch._dynamo import repro",
    "repro, attribute": "import torch._dynamo as d\nd.repro.after_dynamo",
    "debug_utils": "from torch._dynamo.debug_utils import same_two_models",
    "fx_minifier": "from torch._functorch.fx_minifier import minifier",
    "bisector": "from torch._inductor import compiler_bisector",
    "functorch": "from functorch.compile import minifier",
    "functorch, attribute": "import functorch.compile\nfunctorch.compile.minifier(1)",
    "functorch, alias": "import functorch.compile as fc\nfc.minifier",
    "functorch, star": "from functorch.compile import *",
    "import_module": "import importlib\nimportlib.import_module('torch._dynamo.debug_utils')",
    "__import__": "__import__('torch._dynamo.repro.after_aot')",
    "getattr": "import torch._dynamo as d\ngetattr(d, 'repro')",
    "string": "NAMES = ['torch._dynamo.repro']",
    "string, longer": "NAME = 'torch._inductor.compiler_bisector.CompilerBisector'",
    "string, entry point": "NAME = 'torch._dynamo.debug_utils:run_fwd_maybe_bwd'",
    "string in a call": "resolve(name='functorch.compile.minifier')",
    "f-string": "NAME = f'torch._dynamo.repro.{x}'",
}


@pytest.mark.parametrize("file", ["torch_compat.py", "run/worker.py", "__init__.py"])
@pytest.mark.parametrize("source", FORBIDDEN_SPELLINGS.values(), ids=FORBIDDEN_SPELLINGS.keys())
def test_what_we_replace_fails_everywhere(tmp_path: Path, file: str, source: str) -> None:
    assert any("is what torchsleuth replaces" in message for message in messages(tmp_path, {file: source}))


@pytest.mark.parametrize("name", check_imports.FORBIDDEN)
def test_each_forbidden_name_is_told_once_and_by_name(tmp_path: Path, name: str) -> None:
    [message] = messages(tmp_path, {"torch_compat.py": f"import importlib\nimportlib.import_module('{name}')"})
    assert message == f"torch_compat.py:2: {name} is what torchsleuth replaces; use our own code instead"


@pytest.mark.parametrize(
    "source",
    [
        "import torch._dynamo.config\nx = torch._dynamo.config.repro_after",
        "import torch._dynamo.reprojection",
        "NAME = 'torch._dynamo.reproduce'",
        "import functorch.compile\nfunctorch.compile.aot_function",
        "from functorch.compile import aot_module",
        '"""torch._dynamo.repro is what we replace, says this sentence."""',
        '"""torch._dynamo.repro: what we replace, says this sentence too."""',
        "REMEDY = 'unset torch._dynamo.config.repro_after'",
    ],
)
def test_names_that_only_look_forbidden_pass(tmp_path: Path, source: str) -> None:
    assert messages(tmp_path, {"torch_compat.py": source}) == []


# The command


def test_a_clean_tree_is_one_line_with_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = plant(tmp_path, {"run/worker.py": "import os, torch\nfrom ..errors import A, B\n"})
    assert check_imports.main([str(root)]) == 0
    assert capsys.readouterr().out == f"imports: {len(TOPS) + 2} modules, 4 imports, no rule broken\n"


@pytest.mark.parametrize("content", [b"def f(:\n", b"x = 1\0", b"x = '\xff'\n", b"\n\n  x\n"])
def test_a_file_that_does_not_parse_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    """Exit code 2, and the violations elsewhere are told all the same."""
    root = plant(tmp_path, {"errors.py": "import torchsleuth.cli"})
    (root / "config.py").write_bytes(content)
    assert check_imports.main([str(root)]) == 2
    told = capsys.readouterr().err
    assert f"{root}/config.py:" in told
    assert "does not parse" in told
    assert f"{root}/errors.py:1: " in told


def test_a_tree_with_nothing_in_it_is_not_clean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_imports.main([str(tmp_path / "nowhere")]) == 2
    assert "no Python files here" in capsys.readouterr().err


def test_too_many_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_imports.main(["a", "b"]) == 2
    assert "usage:" in capsys.readouterr().err


def test_no_name_stands_in_two_layers() -> None:
    assert len(TOPS) == len(set(TOPS))


def test_the_real_tree_passes() -> None:
    """As `make lint` runs it: a script, at the root of the repository, without arguments."""
    command = [sys.executable, "tools/check_imports.py"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("no rule broken\n")
