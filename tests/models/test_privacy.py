"""Every process that imports libraries tells them to report to nobody, first."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from models.privacy import CACHES, SILENCED, silence
from tests.imports import parse_imports

ROOT = Path(__file__).parent.parent.parent
# What may report, or import what may. Whoever imports none of it has nothing to silence.
LOUD = {"faster_whisper", "huggingface_hub", "onnxruntime", "openvino", "transformers", "diffusers"}
OURS = {"gateway", "pipelines", "models"}


def entries() -> Iterator[str]:
    """Modules that are started as a process and import libraries, or modules of ours."""
    for folder in ("gateway", "pipelines", "models", "metrics", "scripts"):
        for file in (ROOT / folder).rglob("*.py"):
            text = file.read_text(encoding="utf-8")
            if '__name__ == "__main__"' in text and (LOUD | OURS) & {
                name.partition(".")[0] for _, name, *_ in parse_imports(text)
            }:
                yield str(file.relative_to(ROOT))


@pytest.mark.parametrize("name", sorted(entries()))
def test_every_entry_silences_its_libraries(name: str) -> None:
    tree = ast.parse((ROOT / name).read_text(encoding="utf-8"))
    calls = [
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node) == "silence(os.environ)"
    ]
    assert calls, f"{name} starts a process, and does not call silence(os.environ)"


def test_what_was_set_before_does_not_count() -> None:
    environ = {"ORT_DISABLE_TELEMETRY": "0", "TRITON_CACHE_DIR": "/elsewhere", "XDG_CACHE_HOME": "/x"}
    silence(environ)
    assert SILENCED.items() <= environ.items()
    assert environ["TRITON_CACHE_DIR"] == "/elsewhere"  # a place is the operator's to choose
    assert environ.keys() >= CACHES.keys()


def test_the_libraries_have_read_it() -> None:
    code = (
        "import os; from models.privacy import silence; silence(os.environ)\n"
        "from huggingface_hub import constants; assert constants.HF_HUB_DISABLE_TELEMETRY"
    )
    bare = {name: value for name, value in os.environ.items() if name not in SILENCED}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=bare, check=True)
