"""Write the core of the shim as one file, for programs that can't have another package installed.

    make vendor        # dist/stallscope_shim.py

The file holds `track`, `Run` and `current` with all that they need but integrations and traces: the modules' own text,
one after the other in the order in which they need each other, without what they import from one another, and with
names told apart that several modules have. It needs the standard library alone.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
OUTPUT = ROOT.parent / "dist" / "stallscope_shim.py"
PUBLIC = ("Run", "current", "track")
_ENTRY = "stallscope.shim.loader"
_LEFT_OUT = ("stallscope.integrations", "stallscope.shim.tracing.trace", "stallscope.shim.tracing.recording")
_ONCE = {"TYPE_CHECKING", "__all__"}
"""What the file has once, and modules each."""
_HEADER = '''\
"""The core of Stallscope's shim in one file: copy it beside your program.

    import stallscope_shim as stallscope

    for batch in stallscope.track(loader, run="resnet50"):
        train(batch)

Version {version}, Apache License 2.0, https://github.com/stallscope/stallscope. For integrations, traces and the
exporter install the package instead: pip install stallscope. This file is built by `make vendor` out of these modules
of it; mend them, not this:
{modules}
"""
# ruff: noqa
# mypy: ignore-errors

from __future__ import annotations

__all__ = [{public}]
__version__ = "{version}"

TYPE_CHECKING = False
'''


class Module(NamedTuple):
    """A module's text and what it means."""

    name: str
    source: bytes
    tree: ast.Module


def build() -> str:
    """Put the file together.

    Raises:
        ValueError: a module does what one file can't.
    """
    modules = _modules()
    names = _final_names(modules)
    version = re.search(
        r'__version__ = "(.+)"', (ROOT / "stallscope" / "common" / "version.py").read_text(encoding="utf-8")
    )
    assert version is not None
    parts = [
        _HEADER.format(
            version=version[1],
            modules=_wrapped([module.name.removeprefix("stallscope.") for module in modules]),
            public=", ".join(f'"{name}"' for name in (*PUBLIC, "__version__")),
        )
    ]
    parts += [_Rewriter(module, names).text() for module in modules]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def main() -> None:
    """Write the file."""
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(build(), encoding="utf-8")
    print(OUTPUT)


def _modules() -> list[Module]:
    """The entry and all that it needs, each after what it needs itself."""
    found: dict[str, Module] = {}
    ordered: list[Module] = []

    def visit(name: str) -> None:
        if name in found:
            return
        path = ROOT / (name.replace(".", "/") + ".py")
        source = path.read_bytes()
        module = found[name] = Module(name, source, ast.parse(source))
        later: list[str] = []
        for node in ast.walk(module.tree):
            for needed in _own_modules(node):
                (visit if node in module.tree.body else later.append)(needed)
        ordered.append(module)
        for needed in later:
            visit(needed)

    visit(_ENTRY)
    return ordered


def _own_modules(node: ast.AST) -> Iterator[str]:
    """Modules of this package that an import needs, those left out aside."""
    if isinstance(node, ast.Import):
        if any(alias.name.partition(".")[0] == "stallscope" for alias in node.names):
            raise ValueError(f"line {node.lineno}: import names from a module, or the module from its package")
    elif isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "stallscope":
        for alias in node.names:
            inner = f"{node.module}.{alias.name}"
            module = inner if (ROOT / (inner.replace(".", "/") + ".py")).exists() else node.module
            if not module.startswith(_LEFT_OUT):
                yield module


def _final_names(modules: list[Module]) -> dict[str, dict[str, str]]:
    """What each module's names, its own and those it imports from others, are called in the one file."""
    defined = {module.name: _defined(module.tree) for module in modules}
    imported = {
        alias.asname or alias.name.partition(".")[0]
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, (ast.Import, ast.ImportFrom)) and not any(_own_modules(node))
        for alias in node.names
    }
    local = {module.name: _local(module.tree) for module in modules}
    uses = Counter(name for names in (*defined.values(), *local.values()) for name in names)
    final: dict[str, dict[str, str]] = {}
    for module in modules:
        short = module.name.rpartition(".")[2]
        final[module.name] = {
            name: f"_{short}_{name.lstrip('_')}"
            # A name that only this module has, be it as a local one too, stays.
            if name in imported or (name not in PUBLIC and uses[name] > 1 + (name in local[module.name]))
            else name
            for name in defined[module.name]
        }
    taken = Counter(name for names in final.values() for name in names.values())
    twice = [name for name, count in taken.items() if count > 1]
    if twice or any(name not in taken for name in PUBLIC):
        raise ValueError(f"names that can't be told apart, or public ones that are not there: {twice}")
    for module in modules:  # what one imports, others may have from it in turn
        for node in module.tree.body:
            if isinstance(node, ast.ImportFrom) and any(_own_modules(node)):
                for alias in node.names:
                    if alias.name in (names := final.get(str(node.module), {})):
                        final[module.name][alias.asname or alias.name] = names[alias.name]
    return final


def _defined(tree: ast.Module) -> set[str]:
    """Names that a module defines at its top level, imports aside."""
    names: set[str] = set()
    for statement in tree.body:
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            names.add(statement.name)
        else:
            names |= {
                node.id
                for node in ast.walk(statement)
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            }
    return names - _ONCE


def _local(tree: ast.Module) -> set[str]:
    """Names that functions of a module have as their own."""
    return set().union(*(_bound(node) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)))


class _Rewriter(ast.NodeVisitor):
    """Edits a module's text in place, so that comments and layout stay."""

    def __init__(self, module: Module, names: Mapping[str, Mapping[str, str]]) -> None:
        self._module = module
        self._lines = module.source.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))
        self._all = names
        self._mine = dict(names[module.name])
        self._modules: dict[str, Mapping[str, str]] = {}
        self._edits: dict[tuple[int, int], str] = {}
        self._scopes: list[set[str]] = []

    def text(self) -> str:
        """The module's part of the file."""
        for node in ast.walk(self._module.tree):
            self._learn(node)
        self.visit(self._module.tree)
        source = self._module.source
        for (begin, end), text in sorted(self._edits.items(), reverse=True):
            source = source[:begin] + text.encode() + source[end:]
        return re.sub(r"\n{4,}", "\n\n\n", source.decode())

    def _learn(self, node: ast.AST) -> None:
        """Remember what an import from this package brings."""
        if isinstance(node, ast.ImportFrom) and any(_own_modules(node)):
            for alias in node.names:
                brought = alias.asname or alias.name
                whole = self._all.get(f"{node.module}.{alias.name}")
                if whole is not None:
                    self._modules[brought] = whole
                else:
                    # What only annotations name, under TYPE_CHECKING, is not there.
                    self._mine[brought] = self._all[str(node.module)].get(alias.name, alias.name)

    def _final(self, name: str) -> str:
        """What a name of the module's top level is called in the file; the same where it is local, or a builtin."""
        return name if self._is_local(name) else self._mine.get(name, name)

    def _is_local(self, name: str) -> bool:
        return any(name in scope for scope in self._scopes)

    def visit_Import(self, node: ast.Import) -> None:
        """Leave imports of the standard library."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.module == "__future__" or any(_own_modules(node)):
            self._replace(node, "" if node.col_offset == 0 else "pass")

    def visit_Assign(self, node: ast.Assign) -> None:
        if isinstance(node.targets[0], ast.Name) and node.targets[0].id in _ONCE:
            self._replace(node, "")
        else:
            self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if (final := self._final(node.id)) != node.id:
            self._replace(node, final)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        value = node.value
        if isinstance(value, ast.Name) and value.id in self._modules and not self._is_local(value.id):
            final = self._modules[value.id][node.attr]
            if self._is_local(final):
                raise ValueError(f"{self._module.name}: {final} is a local name where {value.id}.{node.attr} is meant")
            self._replace(node, final)
        else:
            self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        # Before Python 3.12, what stands inside has no true position: words are replaced in all replacement fields.
        wanted: dict[str, str] = {}
        for inner in ast.walk(node):
            if isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name):
                module = inner.value.id
                if module in self._modules and not self._is_local(module):
                    wanted[rf"{module}\.{inner.attr}"] = self._modules[module][inner.attr]
            elif isinstance(inner, ast.Name) and (final := self._final(inner.id)) != inner.id:
                wanted[inner.id] = final
        begin, end = self._at(node)
        if wanted:
            self._edits[begin, end] = _in_fields(self._module.source[begin:end].decode(), wanted)

    def visit_Global(self, node: ast.Global) -> None:
        self._replace(node, f"global {', '.join(self._mine.get(name, name) for name in node.names)}")

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._rename(node, "class")
        for part in (*node.decorator_list, *node.bases, *node.keywords):
            self.visit(part)
        # Names of the class's own body hide others there, though not in its methods.
        body = {
            target.id
            for statement in node.body
            if not isinstance(statement, (ast.FunctionDef, ast.ClassDef))
            for target in ast.walk(statement)
            if isinstance(target, ast.Name) and isinstance(target.ctx, ast.Store)
        }
        for statement in node.body:
            if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
                self.visit(statement)
            else:
                self._within(body, statement)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if not self._scopes and node in self._module.tree.body:
            self._rename(node, "def")
        arguments = node.args
        for part in (*node.decorator_list, *arguments.defaults, *arguments.kw_defaults, node.returns):
            if part is not None:
                self.visit(part)
        for argument in (*_arguments(arguments),):
            if argument.annotation is not None:
                self.visit(argument.annotation)
        self._within(_bound(node), *node.body)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        for part in (*node.args.defaults, *node.args.kw_defaults):
            if part is not None:
                self.visit(part)
        self._within({argument.arg for argument in _arguments(node.args)}, node.body)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> None:
        targets = {name.id for part in node.generators for name in ast.walk(part.target) if isinstance(name, ast.Name)}
        self._scopes.append(targets)
        self.generic_visit(node)
        self._scopes.pop()

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension  # noqa: N815

    def _within(self, bound: set[str], *nodes: ast.AST) -> None:
        self._scopes.append(bound)
        for node in nodes:
            self.visit(node)
        self._scopes.pop()

    def _rename(self, node: ast.ClassDef | ast.FunctionDef, keyword: str) -> None:
        final = self._final(node.name)
        if final != node.name:
            begin = self._starts[node.lineno - 1] + node.col_offset + len(keyword) + 1
            self._edits[begin, begin + len(node.name.encode())] = final

    def _replace(self, node: ast.stmt | ast.expr, text: str) -> None:
        self._edits[self._at(node)] = text

    def _at(self, node: ast.stmt | ast.expr) -> tuple[int, int]:
        """Where a node's text begins and ends, in bytes."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._starts[node.lineno - 1] + node.col_offset, self._starts[node.end_lineno - 1] + node.end_col_offset


def _in_fields(text: str, wanted: Mapping[str, str]) -> str:
    """Replace words in the replacement fields of an f-string, and leave its own text, and strings in it, alone."""
    parts: list[str] = []
    position = begin = depth = 0
    while position < len(text):
        character = text[position]
        if depth == 0 and text[position : position + 2] in ("{{", "}}"):
            position += 2
            continue
        position += 1
        if character == "{":
            if depth == 0:
                parts.append(text[begin:position])
                begin = position
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                field = text[begin : position - 1]
                for pattern, final in wanted.items():
                    field = re.sub(rf"(?<![\w.\"']){pattern}(?![\w\"'])", final, field)
                parts.append(field)
                begin = position - 1
    return "".join([*parts, text[begin:]])


def _arguments(arguments: ast.arguments) -> list[ast.arg]:
    rest = [argument for argument in (arguments.vararg, arguments.kwarg) if argument is not None]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *rest]


def _bound(function: ast.FunctionDef) -> set[str]:
    """Names that are a function's own: arguments, and what it assigns, imports or defines, unless it says `global`."""
    bound = {argument.arg for argument in _arguments(function.args)}
    others: set[str] = set()
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Global):
            others.update(node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
            bound.add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)) and not any(_own_modules(node)):
            bound.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            bound.add(node.name)
        elif not isinstance(node, (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            waiting += ast.iter_child_nodes(node)
    return bound - others


def _wrapped(names: list[str]) -> str:
    """Names as a list that fits into lines."""
    lines, line = [], ""
    for name in names:
        if line and len(line) + len(name) > 100:
            lines.append(line)
            line = ""
        line += f"{', ' if line else ''}{name}"
    return ",\n".join([*lines, line])


if __name__ == "__main__":
    main()
