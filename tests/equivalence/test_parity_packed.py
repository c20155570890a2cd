"""AWQ, GPTQ and compressed-tensors checkpoints give the logits of dense ones that hold the same values."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from models.decoder.batch import ForwardBatch, Segment
from models.decoder.loading import load_decoder
from models.decoder.native.library import library
from models.decoder.transformer import Decoder
from models.decoder.weights.linear import ReorderedLinear
from tests.equivalence.conftest import decode, prefill
from tests.models.decoder.weights.test_packed import scheme
from tests.models.packing import Codes, awq, compressed, gptq

SHAPE = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
DENSE = ["lm_head", "model.layers.1.self_attn.v_proj"]
SETTINGS: dict[str, dict[str, Any]] = {
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "modules_to_not_convert": DENSE},
    "whole": {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True},  # but for the head
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False},
    "gptq-ordered": {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": True, "sym": False},
    "compressed": scheme(group_size=64, symmetric=False),
}
PACKERS = {"awq": awq, "gptq": gptq, "compressed-tensors": compressed}
IDS = list(range(40, 140))
kinds = pytest.mark.parametrize("kind", SETTINGS)


@pytest.fixture(scope="module")
def pairs(
    save_checkpoint: Callable[..., tuple[Path, Any]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, Path]]:
    """Of each kind a packed checkpoint, and a dense one of the same values."""
    folder, _ = save_checkpoint("Llama", **SHAPE)
    original = load_file(folder / "model.safetensors")
    found = {}
    for kind, settings in SETTINGS.items():
        dense, packed = dict(original), dict(original)
        for seed, name in enumerate(sorted(original)):
            stem = name.removesuffix(".weight")
            if not stem.endswith("_proj") or stem in settings.get("modules_to_not_convert", ()):
                continue
            outputs, inputs = original[name].shape
            made = Codes.random(outputs, inputs, settings.get("group_size", 64), seed=seed, lowest_zero=6)
            if kind == "compressed":
                made = replace(made, scales=made.scales.bfloat16())
            if settings.get("desc_act"):  # of q, k and v as of gate and up one order: they see the same inputs
                made = replace(made, groups=Codes.random(8, inputs, 64, shuffled=True).groups)
            dense[name] = made.dense()
            del packed[name]
            tensors = PACKERS[settings["quant_method"]](made)
            packed.update({f"{stem}.{part}": tensor for part, tensor in tensors.items()})
        folders = []
        for tensors, extra in ((packed, {"quantization_config": settings}), (dense, {})):
            made_folder = tmp_path_factory.mktemp(kind)
            shutil.copy(folder / "tokenizer.json", made_folder)
            config = json.loads((folder / "config.json").read_text())
            (made_folder / "config.json").write_text(json.dumps({**config, **extra}))
            save_file(tensors, made_folder / "model.safetensors")
            folders.append(made_folder)
        found[kind] = (folders[0], folders[1])
    return found


def load(folder: Path, **options: Any) -> Decoder:
    return load_decoder(folder, device="cpu", **options).decoder


@kinds
def test_in_float32_logits_are_the_same(kind: str, pairs: dict[str, tuple[Path, Path]]) -> None:
    packed, dense = (load(folder, dtype="float32") for folder in pairs[kind])
    assert torch.equal(prefill(packed, packed.new_cache(8), IDS), prefill(dense, dense.new_cache(8), IDS))


@kinds
@pytest.mark.parametrize("native", [False, True])
def test_the_kernels_keep_to_what_the_codes_say(kind: str, native: bool, pairs: dict[str, tuple[Path, Path]]) -> None:
    packed, dense = pairs[kind]
    exact = load(dense, dtype="float32")
    quick = load(packed, dense_prefill=False, native=native)
    assert quick.details()["weights"].startswith("int4 (native)" if native and library() else "int4")
    assert quick.details()["head"] == "dense bfloat16"
    expected = prefill(exact, exact.new_cache(8), IDS)
    found = prefill(quick, quick.new_cache(8), IDS)
    # As for other files of 4 bits: without a dense copy, the native kernels round a prompt's inputs to 8 bits.
    assert (found - expected).abs().mean() <= (0.05 if native else 0.02) * expected.std()


@kinds
@pytest.mark.parametrize("options", [{}, {"dense_prefill": False}, {"native": False}, {"quantization": "int4"}])
def test_rows_are_the_same_bits_alone_and_together(
    kind: str, options: dict[str, Any], pairs: dict[str, tuple[Path, Path]]
) -> None:
    decoder = load(pairs[kind][0], **options)
    cache = decoder.new_cache(8)
    together = decode(decoder, cache, IDS[:40], context=0)
    again = decoder.new_cache(8)
    alone = torch.cat([decode(decoder, again, [token], context=at) for at, token in enumerate(IDS[:40])])
    assert torch.equal(together, alone)


@pytest.mark.skipif(library() is None, reason="no native library")
@pytest.mark.parametrize(
    ("quantization", "weights", "head", "bound"),
    [(None, "int4", "dense bfloat16", 0.05), ("int4", "int4", "int8", 0.08), ("int8", "int8", "int8", 0.05)],
)
def test_a_dense_head_follows_a_native_forward(
    quantization: str | None, weights: str, head: str, bound: float, pairs: dict[str, tuple[Path, Path]]
) -> None:
    """With `quantization` what was left dense becomes int4 or int8 too, and what was int4 int8."""
    packed, dense = pairs["whole"]
    decoder, exact = load(packed, quantization=quantization, dense_prefill=False), load(dense, dtype="float32")
    assert decoder.details()["attention"] == "paged, native in prefill, native in decode"
    found_forms = [decoder.details()[part].removesuffix(" (native)") for part in ("weights", "head")]
    assert found_forms == [weights, head]
    expected, found = (decode(each, each.new_cache(8), IDS, context=0) for each in (exact, decoder))
    assert (found - expected).abs().mean() <= bound * expected.std()
    positions, rows = torch.arange(len(IDS)), torch.tensor([7, 99])
    batch = ForwardBatch("decode", torch.tensor(IDS), positions, [Segment(len(IDS), 0, list(range(7)))], rows)
    assert torch.equal(decoder.forward(batch, decoder.new_cache(8)), found[rows])


def test_reordered_inputs_stay_int4(pairs: dict[str, tuple[Path, Path]]) -> None:
    decoder = load(pairs["gptq-ordered"][0])
    layer = decoder._weights.layers[0]
    assert all(isinstance(each, ReorderedLinear) for each in (layer.qkv, layer.output, layer.gate_up, layer.down))
    assert "inputs reordered" in decoder.details()["weights"]
