"""Loading a folder: what is read beside the weights, and what is said when something is missing."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from models.decoder.batch import ForwardBatch, Segment
from models.decoder.loading import LoadedModel, load_decoder
from models.errors import ModelLoadError
from models.files.safetensors import SafetensorsFiles
from models.files.safetensors_header import StoredTensor, read_header
from tests.models.decoder.test_config import HF
from tests.models.tokenizer.test_tokenizer import byte_level_folder


def tensors() -> dict[str, torch.Tensor]:
    hidden, kv, intermediate = 64, 32, 96
    shapes = {"model.embed_tokens": (32, hidden), "lm_head": (32, hidden), "model.norm": (hidden,)}
    for index in range(2):
        layer = {
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (intermediate, hidden),
            "mlp.up_proj": (intermediate, hidden),
            "mlp.down_proj": (hidden, intermediate),
        }
        shapes.update({f"model.layers.{index}.{name}": shape for name, shape in layer.items()})
    generator = torch.Generator().manual_seed(0)
    return {f"{name}.weight": torch.randn(shape, generator=generator) * 0.1 for name, shape in shapes.items()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(HF))
    save_file(tensors(), tmp_path / "model.safetensors")
    return byte_level_folder(tmp_path)


def load(folder: Path, **options: Any) -> LoadedModel:
    return load_decoder(folder, device="cpu", **options)


def test_generation_defaults_are_the_model_s_own(folder: Path) -> None:
    plain = load(folder).generation
    assert plain.sampling == {}
    assert plain.eos_ids == {256}  # the tokenizer's
    given = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "eos_token_id": [7, 8], "do_sample": True, "min_p": None}
    (folder / "generation_config.json").write_text(json.dumps(given))
    own = load(folder).generation
    assert own.sampling == {"temperature": 0.6, "top_p": 0.95, "top_k": 20}
    assert own.eos_ids == {7, 8, 256}


def test_ends_that_are_no_row_are_left_out_and_recommendations_are_handed_on(folder: Path) -> None:
    """Neither is a reason to refuse a model."""
    given = {"temperature": 7, "top_k": -1, "top_p": "high", "eos_token_id": [7, 32, -1, 2**32 - 1]}
    (folder / "generation_config.json").write_text(json.dumps(given))
    (folder / "config.json").write_text(json.dumps({**HF, "eos_token_id": 99}))
    found = load(folder).generation
    assert found.sampling == {"temperature": 7, "top_k": -1, "top_p": "high"}
    assert found.eos_ids == {7, 256}


def test_whole_numbers_may_be_spelled_with_a_fraction(folder: Path) -> None:
    spelled = {key: float(value) if isinstance(value, int) else value for key, value in HF.items()}
    (folder / "config.json").write_text(json.dumps({**spelled, "eos_token_id": [5.0]}))
    (folder / "generation_config.json").write_text('{"top_k": 20.0, "eos_token_id": 7.0}')
    found = load(folder)
    assert (found.generation.sampling, found.generation.eos_ids) == ({"top_k": 20}, {5, 7, 256})
    (folder / "config.json").write_text(json.dumps({**HF, "hidden_size": 64.5}))
    with pytest.raises(ModelLoadError, match=r"hidden_size is 64\.5"):
        load(folder)


def test_a_header_is_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []

    def counted(path: Path) -> Mapping[str, StoredTensor]:
        read.append(path)
        return read_header(path)

    monkeypatch.setattr("models.files.safetensors.read_header", counted)
    files = SafetensorsFiles(folder)
    assert files.shape("lm_head.weight") == (32, 64)
    assert read == [folder / "model.safetensors"]


def test_config_s_end_of_sequence_counts_too(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({**HF, "eos_token_id": 5}))
    assert load(folder).generation.eos_ids == {5, 256}


@pytest.mark.parametrize(
    ("quantization", "weights", "head"),
    [(None, "dense bfloat16", "dense bfloat16"), ("int8", "int8", "int8"), ("int4", "int4", "int8")],
)
def test_dense_checkpoints_are_quantised_on_load(
    folder: Path, quantization: str | None, weights: str, head: str
) -> None:
    details = load(folder, quantization=quantization, dense_prefill=False).decoder.details()
    assert (details["weights"].removesuffix(" (native)"), details["head"].removesuffix(" (native)")) == (weights, head)
    assert details["dtype"] == "bfloat16"


def test_quantised_weights_stay_close_to_the_dense_ones(folder: Path) -> None:
    batch = ForwardBatch("decode", torch.tensor([3]), torch.tensor([0]), [Segment(1, 0, [0])])
    exact = load(folder, dtype="float32").decoder
    expected = exact.forward(batch, exact.new_cache(1))
    for quantization, bound in ((None, 0.03), ("int8", 0.05), ("int4", 0.2)):
        decoder = load(folder, quantization=quantization).decoder
        found = decoder.forward(batch, decoder.new_cache(1))
        assert found.dtype == torch.float32
        assert (found - expected).norm() <= bound * expected.norm()


def test_memory_is_reported(folder: Path) -> None:
    decoder = load(folder, quantization="int4", dense_prefill=True).decoder
    without = load(folder, quantization="int4", dense_prefill=False).decoder
    linears = sum(tensor.numel() for name, tensor in tensors().items() if ".layers." in name and tensor.ndim == 2)
    assert decoder.weight_bytes - without.weight_bytes == 2 * linears
    cache = decoder.new_cache(3)
    assert (cache.num_blocks, cache.block_size) == (3, 16)
    assert cache.bytes_per_block == 2 * 2 * 2 * 16 * 16 * 2  # layers, k and v, kv heads, head_dim, positions, bf16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantization": "fp8"}, "fp8"),
        ({"quantization": "int4", "dtype": "float32"}, "bfloat16"),
        ({"dtype": "float16"}, "float16"),
    ],
)
def test_options_without_a_path_are_refused(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        load(folder, **options)


def test_what_is_missing_is_named(folder: Path) -> None:
    incomplete = tensors()
    del incomplete["model.layers.1.mlp.up_proj.weight"]
    save_file(incomplete, folder / "model.safetensors")
    with pytest.raises(ModelLoadError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        load(folder)
    (folder / "model.safetensors").write_bytes(b"garbage")
    with pytest.raises(ModelLoadError, match="can't be read"):
        load(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"no model\.safetensors"):
        load(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelLoadError, match="not valid JSON"):
        load(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ModelLoadError, match=r"no config\.json"):
        load(folder)


def test_a_weight_of_another_shape_is_refused(folder: Path) -> None:
    wrong = tensors()
    wrong["model.layers.0.self_attn.k_proj.weight"] = torch.zeros(16, 64)
    save_file(wrong, folder / "model.safetensors")
    with pytest.raises(ModelLoadError, match=r"layers\.0\.self_attn"):
        load(folder)


def test_what_is_not_supported_is_refused_before_a_weight_is_read(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    changes = {
        "MixtralForCausalLM": {"architectures": ["MixtralForCausalLM"]},
        "rope type ntk": {"rope_scaling": {"type": "ntk"}},
    }
    for reason, change in changes.items():
        (folder / "config.json").write_text(json.dumps({**HF, **change}))
        with pytest.raises(ModelLoadError, match=f"{reason} is not supported.*upstream model"):
            load(folder)
