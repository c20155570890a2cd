"""What modules import, read from their source, and what follows from it: what each one loads, and where imports go in
a circle."""

import ast
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PACKAGES = ("gateway", "pipelines", "models", "metrics")


class Import(NamedTuple):
    line: int
    name: str  # absolute; "." for a relative one
    when: str  # "loaded", "called" (in a function) or "checked" (under TYPE_CHECKING)


Graph = Mapping[str, Collection[Import]]  # by module; a package is the module of its __init__.py


def is_in(name: str, packages: Collection[str]) -> bool:
    """Whether a module is one of `packages` or lies in one."""
    return any(name == package or name.startswith(package + ".") for package in packages)


def parse_imports(text: str) -> Iterator[Import]:
    """All of a module, in the order of its source. `from a import b` is an import of a.b."""
    yield from _imports(ast.parse(text), "loaded")


def _imports(node: ast.AST, when: str) -> Iterator[Import]:
    match node:
        case ast.Import():
            yield from (Import(node.lineno, alias.name, when) for alias in node.names)
        case ast.ImportFrom(level=0, module=str(module)):
            yield from (Import(node.lineno, f"{module}.{alias.name}", when) for alias in node.names)
        case ast.ImportFrom():
            yield Import(node.lineno, ".", when)
        case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(name)), *_]):
            yield Import(node.lineno, name, when)
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            for child in node.body:
                yield from _imports(child, "checked")
            for child in node.orelse:
                yield from _imports(child, when)
            return
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
            when = "called" if when == "loaded" else when
    for child in ast.iter_child_nodes(node):
        yield from _imports(child, when)


@cache
def project() -> Graph:
    """The imports of the project's own modules. Names of theirs are cut to the module that they are in."""
    files = {_name(file): file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))}
    return resolved({name: list(parse_imports(file.read_text())) for name, file in files.items()})


def _name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def resolved(graph: Graph) -> Graph:
    """With each import of something in a module as an import of that module."""

    def module(name: str) -> str:
        parent = name.rpartition(".")[0]
        return name if name in graph or parent not in graph else parent

    return {name: [each._replace(name=module(each.name)) for each in found] for name, found in graph.items()}


def way(graph: Graph, module: str, libraries: Collection[str]) -> list[str]:
    """How loading a module loads one of the libraries: a chain of imports, empty where it does not. The packages that a
    module lies in are loaded with it."""
    ways = {module: [module]}
    queue = [module]
    for name in queue:
        for each in graph[name]:
            if each.when != "loaded":
                continue
            if is_in(each.name, libraries):
                return [*ways[name], each.name]
            parts = each.name.split(".")
            for package in (".".join(parts[: i + 1]) for i in range(len(parts))):
                if package in graph and package not in ways:
                    ways[package] = [*ways[name], package]
                    queue.append(package)
    return []


def circles(graph: Graph) -> list[list[str]]:
    """Modules, or folders beside each other, that import each other, whenever they do: each is a list of names."""
    edges = {(name, each.name) for name, found in graph.items() for each in found if each.name in graph}
    parts = (name.split(".") for name in graph)
    packages = {".".join(each[:depth]) for each in parts for depth in range(len(each))}
    found = []
    for package in sorted(packages):
        beside: dict[str, set[str]] = {}
        for importer, imported in edges:
            ours, theirs = _child(package, importer), _child(package, imported)
            if ours and theirs and ours != theirs:
                beside.setdefault(ours, set()).add(theirs)
        found += _components(beside)
    return found


def _child(package: str, module: str) -> str | None:
    """The module or folder directly in a package that `module` is, or is in. "": the packages at the top."""
    if package and not module.startswith(package + "."):
        return None
    depth = package.count(".") + 2 if package else 1
    return ".".join(module.split(".")[:depth])


def _components(edges: Mapping[str, Collection[str]]) -> list[list[str]]:
    """Strongly connected components of more than one node."""
    reached = {node: _reachable(edges, node) for node in edges}
    found = {frozenset(other for other in reached[node] if node in reached.get(other, ())) for node in edges}
    return sorted(sorted(component) for component in found if len(component) > 1)


def _reachable(edges: Mapping[str, Collection[str]], start: str) -> set[str]:
    seen: set[str] = set()
    queue = [start]
    for node in queue:
        new = set(edges.get(node, ())) - seen
        seen |= new
        queue += new
    return seen
