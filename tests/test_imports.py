"""Imports go one way: gateway → pipelines → models; metrics is a leaf. Frameworks stay where they belong."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("gateway", "pipelines", "models", "metrics")

# Package -> those of ours that it may import.
ALLOWED = {
    "gateway": {"gateway", "pipelines", "models", "metrics"},
    "pipelines": {"pipelines", "models", "metrics"},
    "models": {"models", "metrics"},
    "metrics": {"metrics"},
}
# Where a framework may be imported.
PLACES = {
    "litestar": {"gateway"},
    "uvicorn": {"gateway"},
    "uvloop": {"gateway"},
    "click": {"gateway"},
    "rich": {"gateway"},
    "prometheus_client": {"metrics"},
    "torch": {"pipelines", "models"},
    "transformers": {"pipelines", "models"},
    "diffusers": {"pipelines", "models"},
    "openvino": {"models"},
}
# The process that serves HTTP never loads these, not even by way of something else.
NEVER_IN_THE_GATEWAY = ("torch", "transformers", "diffusers", "onnxruntime", "openvino", "ctranslate2")


def imports(text: str) -> Iterator[tuple[int, str]]:
    """Line and absolute name of everything imported, in functions and under TYPE_CHECKING too."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import():
                yield from ((node.lineno, alias.name) for alias in node.names)
            case ast.ImportFrom(level=0, module=str(module)):
                yield node.lineno, module
            case ast.ImportFrom():
                yield node.lineno, "."  # relative
            case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(name)), *_]):
                yield node.lineno, name


def violations(package: str, text: str) -> list[str]:
    """What a module of `package` must not import."""
    found = []
    for line, name in imports(text):
        top = name.partition(".")[0]
        if name == ".":
            found.append(f"{line}: relative import")
        elif (top in PACKAGES and top not in ALLOWED[package]) or (top in PLACES and package not in PLACES[top]):
            found.append(f"{line}: {package} imports {name}")
        elif top == "tests":
            found.append(f"{line}: {package} imports tests")
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_go_one_way(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    found = [f"{file.relative_to(ROOT)}:{each}" for file in files for each in violations(package, file.read_text())]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("package", "text"),
    [
        ("models", "from pipelines.base import Pipeline"),
        ("pipelines", "import gateway.errors"),
        ("metrics", "import models"),
        ("pipelines", "def f():\n    from litestar import get"),
        ("gateway", "import torch.nn"),
        ("gateway", "import importlib\nimportlib.import_module('torch')"),
        ("gateway", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from torch import Tensor"),
        ("gateway", "from .errors import ApiError"),
        ("models", "from tests.fakes import FakePipeline"),
    ],
)
def test_the_rule_has_teeth(package: str, text: str) -> None:
    assert len(violations(package, text)) == 1


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_is_too_long(package: str) -> None:
    lengths = {file: len(file.read_text().splitlines()) for file in (ROOT / package).rglob("*.py")}
    assert {str(file.relative_to(ROOT)): n for file, n in lengths.items() if n > 400} == {}


def test_the_gateway_process_loads_no_framework_of_the_workers() -> None:
    code = (
        "import sys, gateway.cli.main, gateway.serve, gateway.app, gateway.http.server\n"
        "import gateway.cli.console, gateway.cli.doctor\n"
        f"print([name for name in {NEVER_IN_THE_GATEWAY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
