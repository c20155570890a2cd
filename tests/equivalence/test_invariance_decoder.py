"""A row's logits follow from its own sequence alone: bit for bit in bf16, int8 and int4."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from models.decoder.attention.paged import KVCache
from models.decoder.batch import ForwardBatch, Segment
from models.decoder.loading import load_decoder
from models.decoder.transformer import Decoder
from tests.equivalence.conftest import VOCAB, decode, prefill

NUM_BLOCKS = 256
LENGTHS = (1, 5, 15, 16, 17, 40, 64, 65, 100, 127, 128, 129, 150, 200, 256, 300)
STEPS = 6


@dataclass(frozen=True)
class Case:
    prompt: list[int]
    generated: list[int]
    blocks: list[int]


def sequences(*, scattered: bool = False) -> list[Case]:
    chance = random.Random(0)
    blocks = list(range(NUM_BLOCKS))
    if scattered:
        random.Random(1).shuffle(blocks)
    made = []
    for length in LENGTHS:
        own, blocks = blocks[: length // 16 + 2], blocks[length // 16 + 2 :]
        prompt = [chance.randrange(VOCAB) for _ in range(length)]
        made.append(Case(prompt, [chance.randrange(VOCAB) for _ in range(STEPS)], own))
    return made


FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Mistral": {"sliding_window": 20},
    "SmolLM3": {"no_rope_layers": [1, 0, 1], "use_sliding_window": True, "sliding_window": 40},
    "Phi3": {"sliding_window": 70, "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.75}},
    "Gemma3": {"head_dim": 32, "sliding_window": 20, "sliding_window_pattern": 2},
}
KINDS = [
    *(("Llama", kind) for kind in ("int4", "int4-dense-prefill", "int8", "int4-torch", "int8-torch", "bfloat16")),
    *((family, kind) for family in ("Mistral", "Gemma3") for kind in ("int4", "int8-torch", "bfloat16")),
    ("SmolLM3", "int8"),
    ("Phi3", "int4"),
]


@pytest.fixture(scope="module", params=KINDS, ids="-".join)
def decoder(request: pytest.FixtureRequest, save_checkpoint: Callable[..., tuple[Path, Any]]) -> Decoder:
    family, kind = request.param
    shape = {"hidden_size": 192, "num_attention_heads": 6, "intermediate_size": 448}
    folder, _ = save_checkpoint(family, **shape, **FAMILIES[family])
    quantization, _, variant = kind.partition("-")
    return load_decoder(
        folder,
        device="cpu",
        quantization=None if quantization == "bfloat16" else quantization,
        dense_prefill=variant == "dense-prefill",
        native=variant != "torch",
    ).decoder


@pytest.fixture(scope="module")
def alone(decoder: Decoder) -> list[tuple[Tensor, Tensor]]:
    """Of each sequence the logits of its prompt, and of each generated token, run by itself step by step."""
    found = []
    for each in sequences():
        cache = decoder.new_cache(NUM_BLOCKS)
        prompt = prefill(decoder, cache, each.prompt, blocks=each.blocks)
        steps = [
            decode(decoder, cache, [token], context=len(each.prompt) + step, blocks=each.blocks)
            for step, token in enumerate(each.generated)
        ]
        found.append((prompt, torch.cat(steps)))
    return found


def together(
    decoder: Decoder, cache: KVCache, kind: Any, parts: Sequence[tuple[list[int], int, list[int]]]
) -> tuple[Tensor, ...]:
    """One forward over (ids, context, blocks) of several sequences."""
    ids = torch.tensor([token for each, _, _ in parts for token in each])
    positions = torch.cat([torch.arange(context, context + len(each)) for each, context, _ in parts])
    segments = [Segment(len(each), context, blocks) for each, context, blocks in parts]
    logits = decoder.forward(ForwardBatch(kind, ids, positions, segments), cache)
    return logits.split([len(each) for each, _, _ in parts])


def test_prompts_together_are_as_alone(decoder: Decoder, alone: list[tuple[Tensor, Tensor]]) -> None:
    cache = decoder.new_cache(NUM_BLOCKS)
    found = together(decoder, cache, "prefill", [(each.prompt, 0, each.blocks) for each in sequences()])
    assert all(torch.equal(logits, expected) for logits, (expected, _) in zip(found, alone, strict=True))


def test_decoding_together_is_as_alone(decoder: Decoder, alone: list[tuple[Tensor, Tensor]]) -> None:
    cache = decoder.new_cache(NUM_BLOCKS)
    made = sequences()
    together(decoder, cache, "prefill", [(each.prompt, 0, each.blocks) for each in made])
    for step in range(STEPS):
        parts = [([each.generated[step]], len(each.prompt) + step, each.blocks) for each in made]
        for logits, (_, expected) in zip(together(decoder, cache, "decode", parts), alone, strict=True):
            assert torch.equal(logits[0], expected[step])


def test_chunks_and_scattered_blocks_are_as_whole_runs(decoder: Decoder, alone: list[tuple[Tensor, Tensor]]) -> None:
    cache = decoder.new_cache(NUM_BLOCKS)
    for each, (prompt, steps) in zip(sequences(scattered=True), alone, strict=True):
        chunks = [
            prefill(decoder, cache, each.prompt[start : start + decoder.tile], blocks=each.blocks, context=start)
            for start in range(0, len(each.prompt), decoder.tile)
        ]
        assert torch.equal(torch.cat(chunks), prompt)
        first = decode(decoder, cache, each.generated[:1], context=len(each.prompt), blocks=each.blocks)
        assert torch.equal(first, steps[:1])


def test_replaying_generated_tokens_at_once_is_as_step_by_step(
    decoder: Decoder, alone: list[tuple[Tensor, Tensor]]
) -> None:
    cache = decoder.new_cache(NUM_BLOCKS)
    made = sequences()
    together(decoder, cache, "prefill", [(each.prompt, 0, each.blocks) for each in made])
    parts = [(each.generated, len(each.prompt), each.blocks) for each in made]
    found = together(decoder, cache, "decode", parts)
    assert all(torch.equal(logits, expected) for logits, (_, expected) in zip(found, alone, strict=True))


def test_wanted_rows_are_those_of_all(decoder: Decoder, alone: list[tuple[Tensor, Tensor]]) -> None:
    index = LENGTHS.index(100)
    each = sequences()[index]
    rows = torch.tensor([99, 0])
    found = prefill(decoder, decoder.new_cache(NUM_BLOCKS), each.prompt, blocks=each.blocks, rows=rows)
    assert torch.equal(found, alone[index][0][rows])


@pytest.mark.parametrize("family", FAMILIES)
def test_in_float32_paged_and_chunked_are_within_rounding(
    family: str, save_checkpoint: Callable[..., tuple[Path, Any]]
) -> None:
    folder, _ = save_checkpoint(family, **FAMILIES[family])
    decoder = load_decoder(folder, device="cpu", dtype="float32").decoder
    cache = decoder.new_cache(NUM_BLOCKS)
    for run, paged in zip(sequences(), sequences(scattered=True), strict=True):
        whole = prefill(decoder, cache, run.prompt, blocks=run.blocks)
        steps = decode(decoder, cache, run.generated, context=len(run.prompt), blocks=run.blocks)
        chunks = [
            prefill(decoder, cache, paged.prompt[start : start + decoder.tile], blocks=paged.blocks, context=start)
            for start in range(0, len(paged.prompt), decoder.tile)
        ]
        again = decode(decoder, cache, paged.generated, context=len(paged.prompt), blocks=paged.blocks)
        assert (torch.cat(chunks) - whole).abs().max() <= 1e-4
        assert (again - steps).abs().max() <= 1e-4
        # What prefill would say of the generated positions, decode says too.
        both = prefill(decoder, cache, run.prompt + run.generated, blocks=run.blocks)[len(run.prompt) :]
        assert (both - steps).abs().max() <= 1e-4


def test_given_embeddings_replace_those_of_the_ids(save_checkpoint: Callable[..., tuple[Path, Any]]) -> None:
    folder, reference = save_checkpoint("Llama")
    decoder = load_decoder(folder, device="cpu", dtype="float32").decoder
    ids = list(range(20, 60))
    embeds = reference.get_input_embeddings().weight[ids[10:15]].detach()
    plain = prefill(decoder, decoder.new_cache(4), ids)
    masked = torch.tensor([*ids[:10], 0, 0, 0, 0, 0, *ids[15:]])
    batch = ForwardBatch("prefill", masked, torch.arange(40), [Segment(40, 0, [0, 1, 2])], None, [(10, embeds)])
    assert torch.equal(decoder.forward(batch, decoder.new_cache(4)), plain)
