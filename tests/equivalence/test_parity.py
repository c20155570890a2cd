"""Our decoder gives the logits and the greedy tokens of transformers' models, in float32."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from models.decoder.loading import load_decoder
from tests.equivalence.conftest import VOCAB, blocks_for, decode, prefill

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 64}
LONGROPE = {
    "rope_type": "longrope",
    "partial_rotary_factor": 0.5,
    "short_factor": [1.0, 1.25, 1.5, 2.0],
    "long_factor": [1.0, 2.0, 4.0, 8.0],
}
GEMMA3 = {"num_hidden_layers": 4, "head_dim": 32, "sliding_window": 16, "sliding_window_pattern": 3}
FAMILIES = {
    "llama": ("Llama", {}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-sharded": ("Llama", {"shard_size": "100KB"}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama3-rope": ("Llama", {"rope_parameters": LLAMA3_ROPE}),
    "linear-rope": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}}),
    "yarn-rope": ("Llama", {"rope_parameters": YARN_ROPE}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral-window": ("Mistral", {"sliding_window": 16}),
    "qwen2": ("Qwen2", {}),
    "qwen2-window": ("Qwen2", {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    "qwen3-layer-types": (
        "Qwen3",
        {
            "head_dim": 32,
            "use_sliding_window": True,
            "sliding_window": 16,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "smollm3": ("SmolLM3", {"no_rope_layer_interval": 2}),
    "smollm3-window": (
        "SmolLM3",
        {"no_rope_layers": [0, 1, 0], "use_sliding_window": True, "sliding_window": 24, "attention_bias": True},
    ),
    "smollm3-yarn": ("SmolLM3", {"rope_parameters": YARN_ROPE, "mlp_bias": True, "tie_word_embeddings": False}),
    "phi3": ("Phi3", {}),
    "phi3-window": ("Phi3", {"sliding_window": 17}),
    "phi3-partial": ("Phi3", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.75}}),
    "phi3-longrope": ("Phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 256}),
    "gemma3": ("Gemma3", GEMMA3),
    "gemma3-scaled": (
        "Gemma3",
        {
            **GEMMA3,
            "query_pre_attn_scalar": 24,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
}
TOLERANCE = 1e-4
TOKENS = 64  # generated
MARGIN = 1e-3  # between the two best logits: below it, rounding may choose


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_greedy_tokens_are_those_of_transformers(
    family: str, save_checkpoint: Callable[..., tuple[Path, Any]]
) -> None:
    name, overrides = FAMILIES[family]
    folder, reference = save_checkpoint(name, **overrides)
    decoder = load_decoder(folder, device="cpu", dtype="float32", threads=1).decoder
    cache = decoder.new_cache(16)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, VOCAB, (150,), generator=generator).tolist()

    logits = prefill(decoder, cache, ids)
    rows, whole = [logits[-1]], list(ids)
    for position in range(len(ids), len(ids) + TOKENS):
        whole.append(int(rows[-1].argmax()))
        rows.append(decode(decoder, cache, whole[-1:], context=position, blocks=blocks_for(256))[0])

    with torch.no_grad():
        expected = reference(torch.tensor([whole])).logits[0]
    assert (logits - expected[: len(ids)]).abs().max() <= TOLERANCE
    generated = expected[len(ids) - 1 :]
    assert (torch.stack(rows) - generated).abs().max() <= TOLERANCE
    best, second = generated[:-1].topk(2).values.unbind(1)
    sure = best - second > MARGIN
    assert sure.sum() > 50
    assert torch.equal(generated[:-1].argmax(1)[sure], torch.tensor(whole[len(ids) :])[sure])


def test_the_text_part_of_a_vision_checkpoint_is_the_text_model(
    save_checkpoint: Callable[..., tuple[Path, Any]], tmp_path: Path
) -> None:
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    folder, text = save_checkpoint("Gemma3", **GEMMA3)
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Gemma3Config(text_config=text.config, vision_config={**vision, "image_size": 28, "patch_size": 14})
    both = Gemma3ForConditionalGeneration(config)
    both.model.language_model.load_state_dict(text.model.state_dict())
    both.save_pretrained(tmp_path)
    shutil.copy(folder / "tokenizer.json", tmp_path)
    ids = list(range(40, 120))
    found, expected = (
        prefill(decoder, decoder.new_cache(5), ids)
        for decoder in (
            load_decoder(each, device="cpu", dtype="float32", threads=1).decoder for each in (tmp_path, folder)
        )
    )
    assert torch.equal(found, expected)


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3"])
def test_partial_rotary_of_weights_that_are_not_fused(
    family: str, save_checkpoint: Callable[..., tuple[Path, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Biases and norms of q and k, too. transformers turns a part of a head in Phi-3 only: others are lent its way."""
    from transformers.models.phi3.modeling_phi3 import apply_rotary_pos_emb

    name = family.lower()
    monkeypatch.setattr(f"transformers.models.{name}.modeling_{name}.apply_rotary_pos_emb", apply_rotary_pos_emb)
    rope = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0, "partial_rotary_factor": 0.5}
    folder, reference = save_checkpoint(family, rope_parameters=rope, **({"head_dim": 32} if name == "qwen3" else {}))
    decoder = load_decoder(folder, device="cpu", dtype="float32", threads=1).decoder
    ids = list(range(40, 140))
    with torch.no_grad():
        expected = reference(torch.tensor([ids])).logits[0]
    assert (prefill(decoder, decoder.new_cache(7), ids) - expected).abs().max() <= TOLERANCE
