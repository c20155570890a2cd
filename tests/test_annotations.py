"""No attribute of a class has the name of a type that the class's annotations use.

From Python 3.14 on, annotations are evaluated when somebody asks for them, inside the class: there `bytes: bytes` means
the attribute, and a Struct whose types are asked for can't be made.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("gateway", "pipelines", "models", "metrics", "tests")


def shadowed(text: str) -> list[str]:
    """Lines whose annotations use a name that their class gives to something else."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            taken = {name for statement in node.body for name in names(statement)}
            for statement in node.body:
                used = {
                    each.id for note in annotations(statement) for each in ast.walk(note) if isinstance(each, ast.Name)
                }
                found += [f"{statement.lineno}: {name}" for name in sorted(used & taken)]
    return found


def names(statement: ast.stmt) -> Iterator[str]:
    """That a statement of a class's body gives."""
    match statement:
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Assign(targets=targets):
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def annotations(statement: ast.stmt) -> Iterator[ast.expr]:
    match statement:
        case ast.AnnAssign(annotation=annotation):
            yield annotation
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            taken = statement.args
            given = [*taken.posonlyargs, *taken.args, *taken.kwonlyargs, taken.vararg, taken.kwarg]
            yield from (each.annotation for each in given if each is not None and each.annotation is not None)
            if statement.returns is not None:
                yield statement.returns


@pytest.mark.parametrize("package", PACKAGES)
def test_no_attribute_hides_a_type_of_its_class(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    found = [f"{file.relative_to(ROOT)}:{each}" for file in files for each in shadowed(file.read_text())]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "body",
    [
        "bytes: bytes",
        "list: int\n    names: list[str]",
        "def set(self) -> None: ...\n    def all(self) -> set[int]: ...",
        "type = 1\n    def kind(self, of: type) -> int: ...",
    ],
)
def test_the_rule_has_teeth(body: str) -> None:
    assert len(shadowed(f"class Some:\n    {body}\n")) == 1
    assert not shadowed("bytes = 1\nclass Other:\n    raw: bytes\n    count: int\n")
