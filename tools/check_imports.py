"""The import rules of torchsleuth, checked without importing anything. `make lint` runs this.

    python tools/check_imports.py [SOURCE_ROOT]        (default: src/torchsleuth)

Three rules, in the order of what they protect:

1. **Layers.** Imports point downward only. `LAYERS` below lists every top-level module and subpackage,
   lowest layer first; a module may import from lower layers and from its own top-level package. Siblings
   in one layer do not know each other, unless `SIBLINGS_ALLOWED` says why. `__init__.py` and `__main__.py`
   at the root are the front door: they may import anything, and nothing inside may import from them
   (`__version__` excepted). A module without a layer is a violation too: whoever adds one decides where
   it stands.

2. **Private torch names** (`torch._dynamo`, `torch.utils._pytree`, `t._C` after `import torch as t`) appear
   in `torch_compat` only, so that a new torch breaks one package. Operators are public whatever their name:
   `torch.ops.aten._to_copy` is fine anywhere, and so are dunders such as `torch.__version__`.

3. **What we replace** (`FORBIDDEN`) appears nowhere, not even as a string that something could resolve
   later. A sentence may name it, and so may the package that stands in its place (`STANDS_IN`); which does not
   import it either.

An import counts wherever it stands: in a function, under `TYPE_CHECKING`, in a `try`, or spelled as
`importlib.import_module("literal")`, `__import__("literal")` or `getattr(torch, "literal")`. Names are
followed through import aliases and through plain assignments at module level, file by file; a name that
is computed at run time is beyond this check.

Prints `path:line: what is wrong; what to do` for each violation. Exit code 0: clean. 1: violations.
2: the tree could not be checked (a file does not parse, or there is nothing to check).
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "torchsleuth"
TOOL = "tools/check_imports.py"

LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "locks"),
    ("outcome",),
    ("config",),
    ("torch_compat",),
    ("compare", "case"),
    ("run",),
    ("capture", "reduce", "analyse", "frontend"),
    ("dropin",),
    ("report",),
    ("cli", "auto", "pytest_plugin"),
)
"""Lowest first. The names in one row are siblings."""

SIBLINGS_ALLOWED: dict[tuple[str, str], str] = {}
"""(importer, imported) of one layer → the reason why this one may know that one."""

FORBIDDEN = (
    "torch._dynamo.repro",
    "torch._dynamo.debug_utils",
    "torch._functorch.fx_minifier",
    "torch._inductor.compiler_bisector",
    "functorch.compile.minifier",
)
"""What torchsleuth replaces, and therefore does not lean on."""

STANDS_IN = "dropin"
"""Puts itself where what it replaces is called, and logs where that logs: it has to name it."""

COMPAT = "torch_compat"
FRONT_DOOR = frozenset({"__init__", "__main__"})
PUBLIC_OF_FRONT_DOOR = frozenset({"__version__"})

_RANK = {name: rank for rank, names in enumerate(LAYERS, start=1) for name in names}
_DOTTED_PATH = re.compile(r"[\w.:]+")


@dataclass(frozen=True, order=True)
class Violation:
    """One broken rule, where it is and what to do about it."""

    path: Path
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


@dataclass(frozen=True)
class Module:
    """A source file and its name in the package: `run/worker.py` is `torchsleuth.run.worker`."""

    path: Path
    dotted: str
    is_package: bool

    @classmethod
    def at(cls, path: Path, root: Path) -> Module:
        parts = path.relative_to(root).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        return cls(path, ".".join((PACKAGE, *(parts[:-1] if is_package else parts))), is_package)

    @property
    def top(self) -> str:
        """The top-level module or subpackage this file belongs to; `__init__` for the package itself."""
        _, _, below = self.dotted.partition(".")
        return below.split(".")[0] or "__init__"

    @property
    def package(self) -> str:
        """What a relative import in this file is relative to."""
        return self.dotted if self.is_package else self.dotted.rpartition(".")[0]


@dataclass(frozen=True)
class Reference:
    """A dotted name that a file reaches for, whichever way it is spelled."""

    line: int
    dotted: str
    star: bool = False
    """`from dotted import *`"""


class ReferenceFinder(ast.NodeVisitor):
    """Collects what one file refers to: imports, attribute chains that start at an import, strings."""

    def __init__(self, module: Module, tree: ast.Module) -> None:
        self.module = module
        self.imports: list[Reference] = []
        self.attributes: list[Reference] = []
        self.strings: list[Reference] = []
        self._bound: dict[str, str] = {"__import__": "builtins.__import__", "getattr": "builtins.getattr"}
        self._learn_names(tree)
        self.visit(tree)

    # What a name stands for. One table for the whole file: a name bound to torch in one function
    # and to something else in the next is too confusing to be worth telling apart.

    def _learn_names(self, tree: ast.Module) -> None:
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.split(".")[0]
                    self._bound[alias.asname or top] = alias.name if alias.asname else top
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    self._bound[alias.asname or alias.name] = f"{self._base(node)}.{alias.name}"
        for statement in tree.body:
            if isinstance(statement, ast.Assign) and (dotted := self._resolve(statement.value)):
                self._bound.update({t.id: dotted for t in statement.targets if isinstance(t, ast.Name)})

    def _resolve(self, node: ast.expr) -> str | None:
        """The dotted name an expression stands for, if it starts at an import."""
        match node:
            case ast.Name(id=name):
                return self._bound.get(name)
            case ast.Attribute(value=value, attr=attribute):
                return _join(self._resolve(value), attribute)
            case ast.Call():
                return self._resolve_call(node)
        return None

    def _resolve_call(self, call: ast.Call) -> str | None:
        match self._resolve(call.func), call.args:
            case "builtins.getattr", [value, ast.Constant(value=str(attribute)), *_]:
                return _join(self._resolve(value), attribute)
            case "builtins.__import__", _ if imported := self._imported_by(call):
                return imported.split(".")[0]
            case "importlib.import_module", _:
                return self._imported_by(call)
        return None

    def _imported_by(self, call: ast.Call) -> str | None:
        """The module that `import_module("literal")` or `__import__("literal")` imports."""
        if self._resolve(call.func) not in ("importlib.import_module", "builtins.__import__"):
            return None
        name = _literal(_argument(call, 0, "name"))
        if name is None or not name.startswith("."):
            return name
        anchor = _argument(call, 1, "package")
        package = _literal(anchor) or self.module.package
        if isinstance(anchor, ast.Name) and anchor.id == "__name__":
            package = self.module.dotted
        below = name.lstrip(".")
        return _relative(package, len(name) - len(below), below)

    def _base(self, node: ast.ImportFrom) -> str:
        named = node.module or ""
        return _relative(self.module.package, node.level, named) if node.level else named

    # What the file reaches for.

    def visit_Import(self, node: ast.Import) -> None:
        self.imports += (Reference(node.lineno, alias.name) for alias in node.names)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = self._base(node)
        for alias in node.names:
            if alias.name == "*":
                self.imports.append(Reference(node.lineno, base, star=True))
            else:
                self.imports.append(Reference(alias.lineno, f"{base}.{alias.name}"))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if dotted := self._resolve(node):
            self.attributes.append(Reference(node.lineno, dotted))
            while isinstance(node.value, ast.Attribute):  # `torch._C` inside `torch._C.x` is told already
                node = node.value
        self.visit(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        if imported := self._imported_by(node):
            self.imports.append(Reference(node.lineno, imported))
        elif dotted := self._resolve_call(node):
            self.attributes.append(Reference(node.lineno, dotted))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and _DOTTED_PATH.fullmatch(node.value):
            self.strings.append(Reference(node.lineno, node.value.replace(":", ".")))


def _join(base: str | None, attribute: str) -> str | None:
    return f"{base}.{attribute}" if base else None


def _argument(call: ast.Call, position: int, keyword: str) -> ast.expr | None:
    if len(call.args) > position:
        return call.args[position]
    return next((k.value for k in call.keywords if k.arg == keyword), None)


def _literal(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _relative(package: str, level: int, below: str) -> str:
    """What `level` dots and a name mean inside `package`. Starts with a dot where they lead out of it."""
    parts = package.split(".")
    if level > len(parts):
        return f".{below}"
    kept = parts[: len(parts) - (level - 1)]
    return ".".join((*kept, below) if below else kept)


# The rules. Each looks at one reference and says what is wrong with it, or nothing.


def without_layer(module: Module) -> Violation | None:
    if module.top in _RANK or module.top in FRONT_DOOR:
        return None
    return Violation(module.path, 1, f"{PACKAGE}.{module.top} has no layer; give it a layer in LAYERS of {TOOL}")


def wrong_layer(module: Module, reference: Reference, tops: Collection[str]) -> str | None:
    """`tops` are the top-level modules and subpackages on disk."""
    package, _, below = reference.dotted.partition(".")
    if package == "":
        return "a relative import with too many dots leaves the package; count them again"
    if package != PACKAGE or module.top in FRONT_DOOR:
        return None
    importer, imported = module.top, below.split(".")[0]
    if imported in PUBLIC_OF_FRONT_DOOR or imported == importer:
        return None
    if imported not in _RANK and (imported not in tops or imported in FRONT_DOOR):
        return (
            f"{reference.dotted} is reached through the front door, which is for users of {PACKAGE}; "
            "import from the module that defines the name"
        )
    if imported not in _RANK or importer not in _RANK:
        return None  # told by `without_layer`
    if _RANK[imported] < _RANK[importer]:
        return None
    if _RANK[imported] > _RANK[importer]:
        return (
            f"{importer} (layer {_RANK[importer]}) imports upward from {imported} (layer {_RANK[imported]}); "
            f"move what it needs to a layer below {importer}, or let the caller pass it in"
        )
    if (importer, imported) in SIBLINGS_ALLOWED:
        return None
    return (
        f"{importer} imports its sibling {imported}; move what both need to a lower layer, "
        f"or list the pair with its reason in SIBLINGS_ALLOWED of {TOOL}"
    )


def private_torch_name(module: Module, reference: Reference) -> str | None:
    segments = reference.dotted.split(".")
    if segments[0] != "torch" or segments[1:2] == ["ops"] or module.top == COMPAT:
        return None
    for end, segment in enumerate(segments, start=1):
        if segment.startswith("_") and not (segment.startswith("__") and segment.endswith("__")):
            private = ".".join(segments[:end])
            return f"{private} is a private name of torch; reach it through {PACKAGE}.{COMPAT}"
    return None


def forbidden(reference: Reference) -> str | None:
    for name in FORBIDDEN:
        inside = f"{reference.dotted}.".startswith(f"{name}.")
        star = reference.star and name.rpartition(".")[0] == reference.dotted
        if inside or star:
            return f"{name} is what {PACKAGE} replaces; use our own code instead"
    return None


def broken_by(module: Module, found: ReferenceFinder, tops: Collection[str]) -> Iterator[Violation]:
    for reference in (*found.imports, *found.attributes):
        message = forbidden(reference) or private_torch_name(module, reference) or wrong_layer(module, reference, tops)
        if message:
            yield Violation(module.path, reference.line, message)
    for reference in found.strings if module.top != STANDS_IN else ():
        if message := forbidden(reference):
            yield Violation(module.path, reference.line, message)


@dataclass(frozen=True)
class Report:
    """What a check of one tree found."""

    modules: int
    imports: int
    violations: tuple[Violation, ...]
    unchecked: tuple[str, ...]
    """Why the tree, or a file of it, could not be checked."""

    @property
    def exit_code(self) -> int:
        return 2 if self.unchecked else 1 if self.violations else 0

    def lines(self) -> Iterator[str]:
        yield from map(str, self.violations)
        yield from self.unchecked
        if self.exit_code == 0:
            yield f"imports: {self.modules} modules, {self.imports} imports, no rule broken"


def check(root: Path) -> Report:
    """Check every Python file under `root`, the directory of the package."""
    modules = [Module.at(path, root) for path in sorted(root.rglob("*.py"))]
    if not modules:
        return Report(0, 0, (), (f"{root}:1: no Python files here; name the directory of the package",))
    tops = {module.top: module for module in reversed(modules)}
    violations = {v for module in tops.values() if (v := without_layer(module))}
    unchecked = []
    imports = 0
    for module in modules:
        try:
            tree = ast.parse(module.path.read_bytes(), filename=str(module.path))
        except (SyntaxError, ValueError) as error:  # ValueError: null bytes
            line = getattr(error, "lineno", None) or 1
            unchecked.append(f"{module.path}:{line}: does not parse ({getattr(error, 'msg', error)}); mend it first")
            continue
        found = ReferenceFinder(module, tree)
        imports += len(found.imports)
        violations.update(broken_by(module, found, tops.keys()))
    return Report(len(modules), imports, tuple(sorted(violations)), tuple(unchecked))


def main(argv: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    if len(arguments) > 1:
        print(f"usage: {TOOL} [SOURCE_ROOT]", file=sys.stderr)
        return 2
    report = check(Path(arguments[0] if arguments else f"src/{PACKAGE}"))
    for line in report.lines():
        print(line, file=sys.stdout if report.exit_code == 0 else sys.stderr)
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
