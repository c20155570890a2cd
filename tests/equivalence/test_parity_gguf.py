"""A GGUF file of a tiny checkpoint gives the logits of the checkpoint it was made from."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.decoder.loading import load_decoder
from models.decoder.native.library import library
from tests.equivalence.conftest import VOCAB, prefill
from tests.models.blocks import Q, stored
from tests.models.conftest import write_gguf

HEADS = {"q_proj": 4, "k_proj": 2}
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
}
LINEARS = ("gate_proj", "up_proj", "down_proj", "q_proj", "k_proj", "v_proj", "o_proj")


def convert(reference: Any, architecture: str, path: Path, kinds: Mapping[str, Q]) -> Path:
    """As llama.cpp's converter does it: q and k rows of Llama interleaved; `kinds`: of parts that are quantised."""
    config = reference.config
    tensors: dict[str, np.ndarray] = {}
    blocks: dict[str, tuple[np.ndarray, Q]] = {}
    for name, parameter in reference.state_dict().items():
        stem, suffix = name.rsplit(".", 1)
        last = stem.rsplit(".", 1)[-1]
        index = f"blk.{stem.split('.')[2]}." if ".layers." in stem else ""
        value = parameter.numpy()
        if architecture == "llama" and last in HEADS:
            value = value.reshape(HEADS[last], 2, -1, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)
        short = f"{index}{NAMES.get(last) or NAMES[stem]}.{suffix}"
        if last in kinds and value.ndim == 2:
            blocks[short] = (stored(value, kinds[last]), kinds[last])
        else:
            tensors[short] = value.copy()
    metadata = {
        f"{architecture}.{key}": value
        for key, value in {
            "embedding_length": config.hidden_size,
            "feed_forward_length": config.intermediate_size,
            "block_count": config.num_hidden_layers,
            "attention.head_count": config.num_attention_heads,
            "attention.head_count_kv": config.num_key_value_heads,
            "attention.key_length": getattr(config, "head_dim", None) or 16,
            "context_length": config.max_position_embeddings,
            "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
            "rope.freq_base": 10000.0,
        }.items()
    }
    tokenizer = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [f"t{index}" for index in range(VOCAB)],
        "tokenizer.ggml.merges": ["t 1"],
        "tokenizer.ggml.eos_token_id": 2,
    }
    tokenizer["tokenizer.ggml.tokens"][:3] = ["t", "1", "t1"]
    return write_gguf(path, architecture, metadata={**metadata, **tokenizer}, tensors=tensors, blocks=blocks)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_float32_files_give_the_logits_of_transformers(
    architecture: str, save_checkpoint: Callable[..., tuple[Path, Any]], tmp_path: Path
) -> None:
    _, reference = save_checkpoint(architecture.capitalize(), **({"head_dim": 16} if architecture == "qwen3" else {}))
    path = convert(reference, architecture, tmp_path / "m.gguf", {})
    decoder = load_decoder(path, device="cpu", dtype="float32").decoder
    ids = list(range(40, 140))
    with torch.no_grad():
        expected = reference(torch.tensor([ids])).logits[0]
    assert (prefill(decoder, decoder.new_cache(8), ids) - expected).abs().max() <= 1e-4


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "Q5_1"])
def test_quantised_files_give_the_logits_of_their_dequantised_weights(
    kind: str, native: bool, save_checkpoint: Callable[..., tuple[Path, Any]], tmp_path: Path
) -> None:
    """The int4 and int8 kernels run, on the file's codes or on those nearest to them."""
    _, reference = save_checkpoint("Llama", num_key_value_heads=2)
    path = convert(reference, "llama", tmp_path / "m.gguf", dict.fromkeys(LINEARS, Q[kind]))
    exact = load_decoder(path, device="cpu", dtype="float32").decoder
    quick = load_decoder(path, device="cpu", dense_prefill=False, native=native).decoder
    held = {"Q4_0": "int4", "Q4_1": "int4", "Q8_0": "int8", "Q5_1": "int8"}
    assert quick.details()["weights"].removesuffix(" (native)") == held[kind]
    ids = list(range(40, 140))
    expected = prefill(exact, exact.new_cache(8), ids)
    found = prefill(quick, quick.new_cache(8), ids)
    # Without a dense copy, the native kernels round a prompt's inputs to 8 bits; for int8 weights were rounded again.
    assert (found - expected).abs().mean() <= (
        0.08 if native else 0.03 if held[kind] == "int4" else 0.05
    ) * expected.std()


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize(
    ("linears", "others", "held", "bound"),
    [(Q.Q4_K, Q.Q6_K, "int4", 0.08), (Q.Q3_K, Q.Q5_K, "int4", 0.2), (Q.IQ4_XS, Q.Q5_K, "int8", 0.03)],
    ids=["Q4_K_M", "Q3_K_M", "IQ4_XS"],
)
def test_files_of_several_types_give_the_logits_of_their_dequantised_weights(
    linears: Q,
    others: Q,
    held: str,
    bound: float,
    native: bool,
    save_checkpoint: Callable[..., tuple[Path, Any]],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Published files have more bits for the embedding, the head, values and the down projection."""
    shape = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2, "head_dim": 64}
    _, reference = save_checkpoint("Llama", **shape)
    better = ("v_proj", "down_proj", "embed_tokens", "lm_head")
    kinds = {**dict.fromkeys(LINEARS, linears), **dict.fromkeys(better, others)}
    path = convert(reference, "llama", tmp_path / "m.gguf", kinds)
    exact = load_decoder(path, device="cpu", dtype="float32").decoder
    assert not caplog.records  # nothing is requantised where it is held dense
    quick = load_decoder(path, device="cpu", dense_prefill=False, native=native).decoder
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    details, layer = quick.details(), quick._weights.layers[0]
    forms = [str(each).removesuffix(" (native)") for each in (layer.gate_up, layer.qkv, layer.down, details["head"])]
    assert forms == [held, "int8", "int8", "int8"]
    if native and library() is not None:
        assert details["attention"] == "paged, native in prefill, native in decode"
    ids = list(range(40, 140))
    expected = prefill(exact, exact.new_cache(8), ids)
    found = prefill(quick, quick.new_cache(8), ids)
    assert (found - expected).abs().mean() <= bound * expected.std()
