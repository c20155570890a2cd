"""A family that nothing but its record knows: its files give the logits of those that they were renamed from, bit for
bit."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from models.decoder import loading
from models.decoder.batch import ForwardBatch, Segment
from models.decoder.families import listed
from models.decoder.families.family import Family, GGUFForm, HFForm
from models.decoder.families.layout import GGUF_NAMES, HF_NAMES, Layout, Names, Part
from models.decoder.gguf_config import from_gguf
from models.decoder.logits import on_host
from models.decoder.native.decoder import NativeDecoder
from models.decoder.native.library import library, missing
from models.decoder.transformer import Decoder
from models.errors import ModelLoadError
from models.files.fields import Fields
from models.files.gguf import GGUFFile
from tests.models import hostile
from tests.models.conftest import write_gguf
from tests.models.decoder.test_config import GGUF, HF
from tests.models.decoder.test_loading import tensors
from tests.models.tokenizer.test_tokenizer import byte_level_folder


def _every_other(fields: Fields, with_rope: Sequence[bool]) -> Sequence[bool]:
    return [fields.get("sliding_window") is not None and index % 2 == 1 for index in range(len(with_rope))]


# q, k and v are one, in both forms; each norm's weight is less one in safetensors; q and k rows are Llama's in
# safetensors and another way round in GGUF.
OURS: Names = {
    **{part: f"the.{name.replace('model.', 'body.').replace('layers', 'h')}" for part, name in HF_NAMES.items()},
    Part.QKV: "the.body.h.{}.attention.projection",
    Part.DOWN: "the.body.h.{}.ff.out",
}
PLANET = Family(
    "planet",
    hf=(HFForm("PlanetForCausalLM", "planet", Layout(OURS, interleaved=True, norm_offset=1.0)),),
    gguf=GGUFForm("planet", Layout({**GGUF_NAMES, Part.QKV: "blk.{}.attn_qkv", Part.DOWN: "blk.{}.ffn_out"})),
    defaults={"rms_norm_eps": HF["rms_norm_eps"]},
    slides=_every_other,
)
IDS = [1 + index * 7 % 30 for index in range(40)]


@pytest.fixture
def planet(monkeypatch: pytest.MonkeyPatch) -> Family:
    """As if `listed` had its line."""
    monkeypatch.setattr(listed, "FAMILIES", (*listed.FAMILIES, PLANET))
    return PLANET


def logits(decoder: Any) -> np.ndarray:
    """[rows, vocab]: of a prompt and of two steps."""
    cache, blocks, prompt = decoder.new_cache(4), [2, 0, 1], len(IDS) - 2

    def forward(kind: Any, start: int, end: int) -> np.ndarray:
        batch = ForwardBatch(
            kind, np.array(IDS[start:end]), np.arange(start, end), [Segment(end - start, start, blocks)]
        )
        return on_host(decoder.forward(batch, cache))

    first = forward("prefill", 0, prompt)
    return np.concatenate([first, *(forward("decode", at, at + 1) for at in range(prompt, len(IDS)))])


def interleaved(rows: Any, head_dim: int) -> Any:
    """A head's two halves, a row of each in turn."""
    return rows.reshape(-1, 2, head_dim // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def apart(rows: Any, head_dim: int) -> Any:
    """The other way round."""
    return rows.reshape(-1, head_dim // 2, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def renamed(names: Names, ours: Names, found: dict[str, Any], change: Any) -> dict[str, Any]:
    """Tensors of a family with the names of another; q, k and v become one. `change`: (part, tensor) -> tensor"""
    result: dict[str, Any] = {}
    for layer in range(2):
        one = [change(part, found.pop(f"{names[part].format(layer)}.weight")) for part in (Part.Q, Part.K, Part.V)]
        result[f"{ours[Part.QKV].format(layer)}.weight"] = np.concatenate(one)
        for part, name in names.items():
            key = f"{name.format(layer)}.weight"
            if key in found:
                result[f"{ours[part].format(layer)}.weight"] = change(part, found.pop(key))
    assert not found
    return result


@pytest.mark.parametrize("quantization", [None, "int4"])
def test_safetensors(tmp_path: Path, quantization: str | None, planet: Family) -> None:
    known, new = tmp_path / "known", tmp_path / "new"
    exact = {name: (value * 256).round() / 256 for name, value in tensors().items()}  # so that less one loses nothing
    window = {"sliding_window": 16}

    def change(part: Part, value: np.ndarray) -> np.ndarray:
        if part in (Part.Q, Part.K):
            return interleaved(value, 16)
        return value - 1 if value.ndim == 1 else value

    stored = renamed(HF_NAMES, OURS, {name: value.numpy() for name, value in exact.items()}, change)
    for folder, config, held in (
        (known, {**HF, **window, "layer_types": ["full_attention", "sliding_attention"]}, exact),
        (
            new,
            {key: value for key, value in {**HF, **window}.items() if key != "rms_norm_eps"}
            | {"architectures": ["PlanetForCausalLM"]},
            {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in stored.items()},
        ),
    ):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        save_file(held, folder / "model.safetensors")
        byte_level_folder(folder)
    found, expected = (
        loading.load_decoder(folder, device="cpu", quantization=quantization).decoder for folder in (new, known)
    )
    assert found.config == replace(expected.config, architecture="planet", layout=planet.hf[0].layout)
    assert np.array_equal(logits(found), logits(expected))


@pytest.mark.parametrize("torch_free", [True, False])
def test_gguf(tmp_path: Path, torch_free: bool, planet: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    if torch_free and library() is None:
        pytest.skip(f"native kernels: {missing()}")
    monkeypatch.setattr(hostile, "LAYERS", 2)
    known = hostile.write_model(tmp_path / "known.gguf", metadata={"llama.block_count": 2})
    file = GGUFFile(known)
    kinds = {name: gguf.GGMLQuantizationType(info.type_id) for name, info in file.tensors.items()}
    blocks = {name: file.blocks(name) for name in file.tensors}

    def change(part: Part, value: np.ndarray) -> np.ndarray:
        return apart(value, hostile.HEAD_DIM) if part in (Part.Q, Part.K) else value

    assert planet.gguf
    stored = renamed(GGUF_NAMES, planet.gguf.layout.names, dict(blocks), change)
    vectors = [name for name in stored if "norm" in name]
    new = write_gguf(
        tmp_path / "new.gguf",
        "planet",
        metadata={key.replace("llama.", "planet."): value for key, value in hostile.METADATA.items()}
        | {"planet.block_count": 2},
        tensors={name: stored.pop(name).copy().view(np.float32).reshape(-1) for name in vectors},
        blocks={name: (value, gguf.GGMLQuantizationType.Q8_0) for name, value in stored.items()},
    )
    assert set(kinds.values()) == {gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.F32}
    if not torch_free:
        monkeypatch.setattr(loading, "load_native", lambda *_: None)
    found, expected = (loading.load_decoder(path, device="cpu", dense_prefill=False).decoder for path in (new, known))
    assert isinstance(found, NativeDecoder if torch_free else Decoder)
    assert found.details()["architecture"] == "planet"
    assert np.array_equal(logits(found), logits(expected))


def test_its_rules_hold_for_metadata_too(planet: Family) -> None:
    metadata = {key.replace("llama", "planet"): value for key, value in GGUF.items()}
    metadata |= {"general.architecture": "planet", "planet.attention.sliding_window": 48}
    del metadata["planet.attention.layer_norm_rms_epsilon"]
    config = from_gguf(metadata, rope_factors=None, tied=False)
    assert [layer.window for layer in config.layers] == [None, 48]
    assert config.rms_norm_eps == HF["rms_norm_eps"]


def test_without_its_record_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"GGUF architecture planet is not supported \(supported: llama"):
        from_gguf({**GGUF, "general.architecture": "planet"}, rope_factors=None, tied=False)
