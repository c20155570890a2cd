"""Imports go one way: gateway → pipelines → models; metrics is a leaf. Frameworks stay where they belong."""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.imports import PACKAGES, ROOT, Graph, circles, is_in, parse_imports, project, resolved, way

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

# Importing torch takes longer than all else that a small model's start is made of. So these folders and modules are
# free of it, and load nothing that is not…
TORCH = ("torch", "torchao", "transformers", "diffusers", "accelerate", "safetensors.torch")
TORCH_FREE = (
    "gateway",
    "metrics",
    "models.decoder.batch",
    "models.decoder.config",
    "models.decoder.families",
    "models.decoder.frequencies",
    "models.decoder.gguf_config",
    "models.decoder.layers",
    "models.decoder.loading",
    "models.decoder.logits",
    "models.decoder.native",
    "models.decoder.tensors",
    "models.device",
    "models.embedder",
    "models.errors",
    "models.files",
    "models.privacy",
    "models.tokenizer",
    "models.vision",
    "models.whisper",
    "pipelines",
)
# …but for these in them.
WITH_TORCH = (
    "models.decoder.native.linear",
    "models.embedder.onnx_build",
    "models.embedder.torch_modules",
    "models.files.safetensors",
    "models.vision.mmproj_weights",
    "models.vision.processor",
    "models.vision.tower",
    "models.vision.tower_loading",
    "pipelines.image",
)
# Of those that are free of torch, the ones with a function that imports it, or a module with it: where it runs the
# model, where it is asked for its devices, and where a child process needs it.
WHEN_CALLED = {
    "models.decoder.loading",
    "models.decoder.logits",
    "models.device",
    "models.embedder.onnx_exporter",
    "models.vision.families.llava_onevision",
    "models.vision.folder",
    "models.vision.loading",
    "models.vision.mmproj",
    "pipelines.text.cache.memory",
    "pipelines.text.runner",
}
MAX_LINES = 400
MAX_MODULES = 15  # of a folder, beside its folders


def violations(package: str, text: str) -> list[str]:
    """What a module of `package` must not import."""
    found = []
    for line, name, _ in parse_imports(text):
        top = name.partition(".")[0]
        if name == ".":
            found.append(f"{line}: relative import")
        elif (top in PACKAGES and top not in ALLOWED[package]) or (top in PLACES and package not in PLACES[top]):
            found.append(f"{line}: {package} imports {name}")
        elif top == "tests":
            found.append(f"{line}: {package} imports tests")
    return found


def torch_free(graph: Graph) -> list[str]:
    return [name for name in graph if is_in(name, TORCH_FREE) and not is_in(name, WITH_TORCH)]


def loads_torch(graph: Graph) -> list[str]:
    """What loads torch though it is to be free of it, with the imports by which it does."""
    return [" → ".join(found) for name in torch_free(graph) if (found := way(graph, name, TORCH))]


def calls_for_torch(graph: Graph) -> set[str]:
    """Those that are free of torch until a function of theirs is called."""

    def has_torch(name: str) -> bool:
        return is_in(name, TORCH) or (name in graph and bool(way(graph, name, TORCH)))

    return {
        name
        for name in torch_free(graph)
        if any(each.when == "called" and has_torch(each.name) for each in graph[name])
    }


def crowded(files: Iterable[Path]) -> dict[str, int]:
    """Folders of too many modules."""
    folders: dict[str, int] = {}
    for file in files:
        if file.suffix == ".py" and file.name != "__init__.py":
            folders[str(file.parent)] = folders.get(str(file.parent), 0) + 1
    return {folder: number for folder, number in folders.items() if number > MAX_MODULES}


def graph_of(**modules: str) -> Graph:
    """From sources by name, with "__" for the dots of a name."""
    return resolved({name.replace("__", "."): list(parse_imports(text)) for name, text in modules.items()})


# --- where imports go -------------------------------------------------------------------------------------------------


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
def test_an_import_that_goes_another_way_is_found(package: str, text: str) -> None:
    assert len(violations(package, text)) == 1


def test_no_modules_and_no_folders_import_each_other() -> None:
    assert circles(project()) == []


@pytest.mark.parametrize(
    ("modules", "circle"),
    [
        (
            {"models__a": "import models.b", "models__b": "def f():\n    from models.a import x"},
            ["models.a", "models.b"],
        ),
        (
            {"models__a": "import models.b", "models__b": "import models.c", "models__c": "from models import a"},
            ["models.a", "models.b", "models.c"],
        ),
        (  # no circle of modules, one of folders
            {"models__a__x": "import models.b.x", "models__b__x": "", "models__b__y": "from models.a.x import z"},
            ["models.a", "models.b"],
        ),
        (  # deeper down; for a type only
            {
                "models__d__a__x": "import models.d.b",
                "models__d__b": "if TYPE_CHECKING:\n    import models.d.a.y",
                "models__d__a__y": "",
            },
            ["models.d.a", "models.d.b"],
        ),
        ({"models__x": "import metrics.x", "metrics__x": "", "metrics__y": "import models.x"}, ["metrics", "models"]),
    ],
)
def test_a_circle_is_found_at_its_level(modules: dict[str, str], circle: list[str]) -> None:
    assert circles(graph_of(**modules)) == [circle]


def test_imports_that_only_meet_are_no_circle() -> None:
    graph = graph_of(
        models__a="import models.b, models.c", models__b="import models.d", models__c="import models.d", models__d=""
    )
    assert circles(graph) == []


# --- torch ------------------------------------------------------------------------------------------------------------


def test_what_is_free_of_torch_loads_nothing_with_it() -> None:
    assert loads_torch(project()) == []


def test_torch_is_imported_by_functions_where_that_is_known_alone() -> None:
    assert calls_for_torch(project()) == WHEN_CALLED


def test_no_entry_of_the_lists_is_left_behind() -> None:
    graph = project()
    assert [name for name in (*TORCH_FREE, *WITH_TORCH) if not any(is_in(module, [name]) for module in graph)] == []
    without = [name for name in WITH_TORCH if not any(way(graph, each, TORCH) for each in graph if is_in(each, [name]))]
    assert without == []


def test_what_loads_torch_is_found_with_the_way_to_it() -> None:
    graph = graph_of(
        models="",
        models__files="import models.decoder.rope",  # a package is loaded with what is in it
        models__files__gguf="",
        models__decoder__rope="from torch import nn",
        models__tokenizer="from models.files.gguf import read",
        models__errors="def f():\n    import torch",
        models__device="def f():\n    import models.decoder.rope",
        models__privacy="if TYPE_CHECKING:\n    import torch",
    )
    assert loads_torch(graph) == [
        "models.files → models.decoder.rope → torch.nn",
        "models.tokenizer → models.files → models.decoder.rope → torch.nn",
    ]
    assert calls_for_torch(graph) == {"models.errors", "models.device"}


def in_a_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_no_library_brings_torch_with_it_either() -> None:
    """The worker's main and the pipelines that need no torch are among these."""
    names = [name for name in torch_free(project()) if not name.endswith("__main__")]
    assert {"pipelines.runtime.worker", "pipelines.text.pipeline", "pipelines.audio.pipeline"} <= set(names)
    code = f"import importlib, sys\nfor name in {names!r}:\n    importlib.import_module(name)\n"
    assert in_a_process(code + "print('torch' in sys.modules)") == "False"


def test_the_gateway_process_loads_no_framework_of_the_workers() -> None:
    code = (
        "import sys, gateway.cli.main, gateway.serve, gateway.app, gateway.http.server\n"
        "import gateway.cli.console, gateway.cli.doctor\n"
        f"print([name for name in {NEVER_IN_THE_GATEWAY!r} if name in sys.modules])"
    )
    assert in_a_process(code) == "[]"


# --- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_is_too_long(package: str) -> None:
    lengths = {file: len(file.read_text().splitlines()) for file in (ROOT / package).rglob("*.py")}
    assert {str(file.relative_to(ROOT)): n for file, n in lengths.items() if n > MAX_LINES} == {}


def test_no_folder_is_crowded() -> None:
    assert crowded(file.relative_to(ROOT) for package in PACKAGES for file in (ROOT / package).rglob("*")) == {}


def test_a_crowded_folder_is_found() -> None:
    modules = [Path(f"crowd/m{number}.py") for number in range(MAX_MODULES)]
    others = [Path("crowd/__init__.py"), Path("crowd/c.c"), Path("crowd/more/x.py")]
    assert crowded([*modules, *others]) == {}
    assert crowded([*modules, Path("crowd/one_more.py")]) == {"crowd": MAX_MODULES + 1}
