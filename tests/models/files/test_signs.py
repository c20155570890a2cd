import json
from pathlib import Path
from typing import Any

import pytest

from models.errors import SourceError
from models.files.signs import detect_kind
from pipelines.kinds import signs_by_kind
from tests.models.conftest import write_gguf

SIGNS = signs_by_kind()


@pytest.mark.parametrize("content", ["[]", "{", "null", '{"architectures": "Llama"}', '{"architectures": [1]}'])
def test_a_description_that_is_none_is_refused_by_its_name(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(SourceError, match=r"config\.json"):
        detect_kind(tmp_path, SIGNS)


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({"config.json": {"architectures": ["LlamaForCausalLM"]}}, "text"),
        ({"config.json": {"architectures": ["Qwen2VLForConditionalGeneration"]}}, "text"),
        ({"config.json": {"architectures": ["BertModel"]}}, "embedding"),
        ({"config.json": {"architectures": ["Qwen3ForCausalLM"]}, "modules.json": []}, "embedding"),
        ({"config.json": {"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"]}}, "audio"),
        ({"config.json": {"alignment_heads": [[1, 0]]}}, "audio"),
        ({"model_index.json": {}}, "image"),
    ],
)
def test_the_kind_of_a_folder(tmp_path: Path, files: dict[str, Any], kind: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    assert detect_kind(tmp_path, SIGNS) == kind


def test_the_kind_of_a_file(tmp_path: Path) -> None:
    assert detect_kind(write_gguf(tmp_path / "a.gguf", "llama"), SIGNS) == "text"
    assert detect_kind(write_gguf(tmp_path / "b.gguf", "bert"), SIGNS) == "embedding"
    (tmp_path / "c.onnx").write_bytes(b"\x08\x08")
    assert detect_kind(tmp_path / "c.onnx", SIGNS) == "embedding"
    (tmp_path / "d.bin").write_bytes(b"\x00" * 8)
    with pytest.raises(SourceError, match="set `kind`"):
        detect_kind(tmp_path / "d.bin", SIGNS)


@pytest.mark.parametrize("config", [None, "{}", '{"architectures": ["Unheard"]}', "{broken"])
def test_an_unknown_folder_asks_for_the_kind(tmp_path: Path, config: str | None) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(SourceError, match="kind"):
        detect_kind(tmp_path, SIGNS)
