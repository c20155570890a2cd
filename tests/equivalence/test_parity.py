"""Our decoder gives the logits and the greedy tokens of transformers' models, in float32."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from models.loading import load_decoder
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
FAMILIES = {
    "llama": ("Llama", {}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-sharded": ("Llama", {"shard_size": "100KB"}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama3-rope": ("Llama", {"rope_parameters": LLAMA3_ROPE}),
    "linear-rope": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}}),
    "yarn-rope": ("Llama", {"rope_parameters": YARN_ROPE}),
    "mistral": ("Mistral", {"sliding_window": 256}),  # as wide as the test is long, and a little more
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
}
TOLERANCE = 1e-4
MARGIN = 1e-3  # between the two best logits: below it, rounding may choose


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_greedy_tokens_are_those_of_transformers(
    family: str, save_checkpoint: Callable[..., tuple[Path, Any]]
) -> None:
    name, overrides = FAMILIES[family]
    folder, reference = save_checkpoint(name, **overrides)
    decoder = load_decoder(folder, device="cpu", dtype="float32").decoder
    cache = decoder.new_cache(16)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, VOCAB, (150,), generator=generator).tolist()

    with torch.no_grad():
        expected = reference(torch.tensor([ids])).logits[0]
    logits = prefill(decoder, cache, ids)
    assert (logits - expected).abs().max() <= TOLERANCE

    with torch.no_grad():
        greedy = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        whole = reference.generate(torch.tensor([ids]), max_new_tokens=64, min_new_tokens=64, **greedy)[0]
        expected = reference(whole[None]).logits[0]
    row, compared = logits[-1], 0
    for position in range(len(ids), len(ids) + 64):
        best, second = expected[position - 1].topk(2).values
        if best - second > MARGIN:
            assert int(row.argmax()) == int(whole[position])
            compared += 1
        row = decode(decoder, cache, [int(whole[position])], context=position, blocks=blocks_for(256))[0]
        assert (row - expected[position]).abs().max() <= TOLERANCE
    assert compared > 50
