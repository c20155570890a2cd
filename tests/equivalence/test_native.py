"""The native decode forward against the same arithmetic in torch, and against torch's own kernels."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from models.decoder.assembly import LinearFactory, build_weights
from models.decoder.batch import ForwardBatch, Segment
from models.decoder.config import from_hf
from models.decoder.frequencies import NO_ROPE
from models.decoder.layers import LayerSpec
from models.decoder.loading import load_decoder
from models.decoder.native.forward import knows
from models.decoder.native.library import Engine, library, missing
from models.decoder.rope import RopeTable
from models.decoder.transformer import Decoder
from models.decoder.weights.checkpoint import SafetensorsCheckpoint
from models.decoder.weights.linear import Linear
from models.decoder.weights.quantised import GROUP, Int4Weight, Int8Weight, Weight
from models.files.source import resolve
from tests.equivalence.conftest import blocks_for, decode

pytestmark = pytest.mark.skipif(library() is None, reason=f"native kernels: {missing()}")

CPU = torch.device("cpu")
SHAPE = {"hidden_size": 192, "num_attention_heads": 6, "intermediate_size": 448, "head_dim": 32}


def dense_as_packed(weight: Int4Weight | Int8Weight) -> Tensor:
    """[outputs, inputs] float32: int4's scales and minima are kept in float16."""
    if isinstance(weight, Int8Weight):
        return weight.dense()
    scale, minimum = (each.half().float()[..., None] for each in (weight.scale, weight.zero - 8 * weight.scale))
    return (weight.codes.view(*weight.scale.shape, GROUP).float() * scale + minimum).flatten(1)


class Reference:
    """What the native kernels compute, in float32: weights as their codes say, inputs in 8 bits by groups of 32."""

    weight_bytes = 0
    has_dense_copy = False

    def __init__(self, weight: Int4Weight | Int8Weight, bias: Tensor | None) -> None:
        self._weight = dense_as_packed(weight)
        self._bias = None if bias is None else bias.float()

    def decode(self, x: Tensor) -> Tensor:
        groups = x.view(x.shape[0], -1, GROUP)
        scale = groups.abs().amax(2, keepdim=True) / 127
        rounded = (groups / scale).round() * scale
        return torch.nn.functional.linear(rounded.flatten(1), self._weight, self._bias)

    prefill = decode


class ReferenceFactory(LinearFactory):
    def _quantised(self, weight: Int4Weight | Int8Weight, bias: Tensor | None, dense_copy: bool) -> Linear:
        return Reference(weight, bias)

    def vector(self, weight: Weight) -> Tensor:
        return super().vector(weight).float()

    def embedding(self, weight: Weight) -> Callable[[Tensor], Tensor]:
        rows = super().embedding(weight)
        return lambda ids: rows(ids).float()


def reference(folder: Path, quantization: str, ids: list[int]) -> Tensor:
    """Logits of all positions of one sequence, in the plainest torch."""
    config = from_hf(json.loads((folder / "config.json").read_text()))
    factory = ReferenceFactory(torch.bfloat16, CPU, quantization=quantization, dense_prefill=False)
    weights = build_weights(config, SafetensorsCheckpoint(folder), factory)
    count, heads, kv_heads, dim = len(ids), config.num_heads, config.num_kv_heads, config.head_dim
    positions = torch.arange(count)

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + config.rms_norm_eps) * weight

    hidden = weights.embedding(torch.tensor(ids))
    for layer, spec in zip(weights.layers, config.layers, strict=True):
        qkv = layer.qkv.decode(norm(hidden, layer.attention_norm)).view(count, -1, dim)
        rotated, values = qkv[:, : heads + kv_heads], qkv[:, heads + kv_heads :]
        if layer.qk_norm is not None:
            rotated = norm(rotated, layer.qk_norm)
        table = RopeTable(spec.rope, dim, count, torch.float32, CPU)
        cos, cos_again, sin = torch.cat(table.rows(positions), -1).chunk(3, -1)
        assert torch.equal(cos, cos_again)
        first, second = rotated.chunk(2, -1)
        rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
        queries, keys = rotated.split([heads, kv_heads], 1)
        keys, values = (each.bfloat16().float().repeat_interleave(heads // kv_heads, 1) for each in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", queries, keys) / dim**0.5
        scores += torch.full((count, count), float("-inf")).triu(1)
        if spec.window is not None:
            scores += torch.full((count, count), float("-inf")).tril(-spec.window)
        hidden = hidden + layer.output.decode(torch.einsum("hqk,khd->qhd", scores.softmax(-1), values).flatten(1))
        gate, up = layer.gate_up.decode(norm(hidden, layer.mlp_norm)).chunk(2, -1)
        hidden = hidden + layer.down.decode(torch.nn.functional.silu(gate) * up)
    return weights.head.decode(norm(hidden, weights.norm))


FAMILIES = {
    "llama": ("Llama", {}),
    "mistral": ("Mistral", {"sliding_window": 20}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {}),
    "smollm3": ("SmolLM3", {"no_rope_layers": [1, 0, 1], "use_sliding_window": True, "sliding_window": 33}),
    "phi3": ("Phi3", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.75}}),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("quantization", ["int4", "int8"])
def test_logits_are_those_of_the_reference(
    family: str, quantization: str, save_checkpoint: Callable[..., tuple[Path, Any]]
) -> None:
    name, overrides = FAMILIES[family]
    folder, _ = save_checkpoint(name, **SHAPE, **overrides)
    decoder = load_decoder(folder, device="cpu", quantization=quantization).decoder
    assert "native" in decoder.details()["attention"]

    def error(ids: list[int]) -> Tensor:
        """[rows]"""
        expected = reference(folder, quantization, ids)
        return (decode(decoder, decoder.new_cache(8), ids, context=0) - expected).abs().mean(1) / expected.std()

    # Exact, until an input falls to the other side of a rounding border: from there on a random model differs more.
    # Where that is depends on the prompt: at each position most are exact.
    short = torch.stack([error([1 + (i * 7 + start) % 300 for i in range(4)]) for start in range(0, 300, 43)])
    assert short.median(0).values.max() <= 1e-5
    assert short.max() <= 0.1
    assert error([1 + i * 7 % 300 for i in range(75)]).max() <= 0.1  # more rows than a call takes


def test_what_the_library_has_no_code_for_decodes_on_torch_s_path(
    save_checkpoint: Callable[..., tuple[Path, Any]],
) -> None:
    """Gemma 3's norms of branches, its activation and its scale of attention; its linears are native all the same."""
    folder, _ = save_checkpoint("Gemma3", **SHAPE, sliding_window=20, sliding_window_pattern=2)
    decoder = load_decoder(folder, device="cpu", quantization="int4").decoder
    details = decoder.details()
    assert details["attention"].endswith("a call a position in decode")
    assert details["weights"].startswith("int4 (native)")
    llama = from_hf(json.loads((save_checkpoint("Llama", **SHAPE)[0] / "config.json").read_text()))
    assert knows(llama)
    for switch in ({"activation": "gelu_tanh"}, {"branch_norms": True}, {"layers": (LayerSpec(NO_ROPE, scale=0.1),)}):
        assert not knows(replace(llama, **switch))


@pytest.mark.requires_weights
def test_the_embedded_model_says_the_same() -> None:
    """Next tokens of a text, position by position: nearly the distribution that torch's kernels give.

    Activations in 8 bits cost some hundredths of a nat at most; another choice of the likeliest token is a tie.
    """
    path = resolve("embedded:smollm2-135m-instruct")
    native, reference = (load_decoder(path, device="cpu", native=native) for native in (True, False))
    text = "The keeper of the lighthouse counted seven ships before the storm came in, and wrote their names down."
    ids = native.tokenizer.encode(text, add_special=False)

    def whole(decoder: Decoder) -> torch.Tensor:
        return decode(decoder, decoder.new_cache(8), ids, context=0).log_softmax(1)

    expected, found = whole(reference.decoder), whole(native.decoder)
    divergence = (expected.exp() * (expected - found)).sum(1)
    assert divergence.mean() <= 0.02
    assert divergence.max() <= 0.1
    likeliest = expected.gather(1, found.argmax(1, keepdim=True)).squeeze(1)
    assert (expected.amax(1) - likeliest).max() <= 0.5


def limit(monkeypatch: pytest.MonkeyPatch, name: str, most: int) -> None:
    """As if the library were built with it."""
    start = Engine.start

    def limited(threads: int) -> Engine | None:
        engine = start(threads)
        assert engine is not None
        setattr(engine.limits, name, most)
        return engine

    monkeypatch.setattr(Engine, "start", limited)


@pytest.mark.parametrize(("name", "most"), [("head_dim", 16), ("queries", 1), ("block", 8)])
def test_a_shape_that_the_library_has_no_code_for_runs_without_it(
    name: str, most: int, save_checkpoint: Callable[..., tuple[Path, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = save_checkpoint("Llama", **SHAPE)
    limit(monkeypatch, name, most)
    assert "native" not in load_decoder(folder, device="cpu", quantization="int4").decoder.details()["attention"]


def test_more_rows_than_one_call_takes(
    save_checkpoint: Callable[..., tuple[Path, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay of 100 tokens of one sequence beside a step of another, of which two rows are wanted."""
    limit(monkeypatch, "rows", 64)
    folder, _ = save_checkpoint("Llama", **SHAPE)
    decoder = load_decoder(folder, device="cpu", quantization="int4").decoder
    long, short = [1 + i % 300 for i in range(100)], [7, 8, 9]
    alone = decode(decoder, decoder.new_cache(16), long, context=0)
    first, second = blocks_for(100), blocks_for(3, first=10)
    batch = ForwardBatch(
        "decode",
        torch.tensor(long + short),
        torch.tensor([*range(100), *range(3)]),
        [Segment(100, 0, first), Segment(3, 0, second)],
        torch.tensor([99, 102]),
    )
    found = decoder.forward(batch, decoder.new_cache(16))
    assert torch.equal(found[0], alone[99])
    assert torch.equal(found[1], decode(decoder, decoder.new_cache(16), short, context=0)[2])
