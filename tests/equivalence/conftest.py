"""Tiny random checkpoints, made by transformers, and helpers that run a decoder over whole prompts."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from models.decoder.attention.paged import KVCache
from models.decoder.batch import ForwardBatch, Segment
from models.decoder.transformer import Decoder

VOCAB = 320
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "eos_token_id": 2,
    "bos_token_id": 1,
    "pad_token_id": 0,
}


def blocks_for(length: int, first: int = 0) -> list[int]:
    return list(range(first, first - (-length // 16)))


def prefill(
    decoder: Decoder,
    cache: KVCache,
    ids: Sequence[int],
    *,
    blocks: Sequence[int] | None = None,
    context: int = 0,
    rows: Tensor | None = None,
) -> Tensor:
    """Logits of `ids` at positions `context …`."""
    blocks = blocks if blocks is not None else blocks_for(context + len(ids))
    positions = torch.arange(context, context + len(ids))
    segment = Segment(len(ids), context, blocks)
    return decoder.forward(ForwardBatch("prefill", torch.tensor(ids), positions, [segment], rows), cache)


def decode(
    decoder: Decoder, cache: KVCache, ids: Sequence[int], *, context: int, blocks: Sequence[int] | None = None
) -> Tensor:
    """Logits of generated `ids`, the first of which stands at position `context`."""
    blocks = blocks if blocks is not None else blocks_for(context + len(ids))
    positions = torch.arange(context, context + len(ids))
    segment = Segment(len(ids), context, blocks)
    return decoder.forward(ForwardBatch("decode", torch.tensor(ids), positions, [segment]), cache)


def roughen(model: Any) -> None:
    """Norms and biases start as ones and zeros, which would hide that they are ignored."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)


def save_tokenizer(folder: Path) -> None:
    """A byte a token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = {char: id for id, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.fixture(scope="session")
def save_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, Any]]:
    """Makes a random model of a transformers config class, saves it with a tokenizer, returns (folder, model)."""
    import transformers

    def save(family: str, *, shard_size: str = "1GB", **overrides: Any) -> tuple[Path, Any]:
        torch.manual_seed(0)
        kind = getattr(transformers, f"{family}ForCausalLM")
        model = kind(kind.config_class(**{**SHAPE, **overrides})).eval()
        roughen(model)
        folder = tmp_path_factory.mktemp(family)
        model.save_pretrained(folder, max_shard_size=shard_size)
        save_tokenizer(folder)
        return folder, model

    return save
