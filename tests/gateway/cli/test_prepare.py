from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli.main import main
from models.errors import ModelLoadError
from pipelines.messages.frames import ModelSpec

CONFIG = """
[[models]]
name = "chat"
kind = "text"
source = "/models/chat"

[[models]]
name = "vectors"
kind = "embedding"
source = "/models/vectors"
quantization = "int8"

[[models]]
name = "pairs"
kind = "embedding"
source = "/models/pairs"
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "gateway.toml"
    path.write_text(CONFIG)
    return str(path)


def prepared(monkeypatch: pytest.MonkeyPatch, prepare: Callable[[ModelSpec], bool]) -> None:
    monkeypatch.setattr("pipelines.embedding.loading.prepare", prepare)


def test_every_embedding_model_is_exported_once(monkeypatch: pytest.MonkeyPatch, config: str) -> None:
    seen: list[ModelSpec] = []

    def prepare(spec: ModelSpec) -> bool:
        seen.append(spec)
        return spec.name == "vectors"

    prepared(monkeypatch, prepare)
    result = CliRunner().invoke(main, ["models", "prepare", "--config", config])
    assert result.exit_code == 0
    assert [(spec.name, spec.quantization) for spec in seen] == [("vectors", "int8"), ("pairs", None)]
    first, second = result.output.splitlines()
    assert first.startswith("vectors: exported in ")
    assert second == "pairs: ready"


def test_one_that_cannot_be_exported_does_not_keep_the_others(monkeypatch: pytest.MonkeyPatch, config: str) -> None:
    def prepare(spec: ModelSpec) -> bool:
        if spec.name == "vectors":
            raise ModelLoadError("it has 3 labels")
        return False

    prepared(monkeypatch, prepare)
    result = CliRunner().invoke(main, ["models", "prepare", "--config", config])
    assert result.exit_code == 1
    assert result.output.splitlines() == ["vectors: it has 3 labels", "pairs: ready"]


def test_the_listing_is_what_it_was(config: str) -> None:
    result = CliRunner().invoke(main, ["models", "--json", "--config", config])
    assert result.exit_code == 0
    assert '"vectors"' in result.output
