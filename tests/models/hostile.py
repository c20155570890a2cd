"""Small model files, and headers of theirs with something changed, as chance or an attacker would."""

import copy
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.models.conftest import write_gguf

HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 512, 512, 1, 8, 4, 64
TOKENS = [f"t{number}" for number in range(28)] + ["a", "b", "ab", "</s>"]

METADATA: dict[str, Any] = {
    "llama.context_length": 128,
    "llama.embedding_length": HIDDEN,
    "llama.block_count": LAYERS,
    "llama.feed_forward_length": INTERMEDIATE,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": KV_HEADS,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
    "llama.vocab_size": len(TOKENS),
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [1] * 31 + [3],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.eos_token_id": 31,
    "tokenizer.ggml.add_bos_token": False,
    "tokenizer.chat_template": "{{ messages }}",
}


def gguf_tensors() -> dict[str, tuple[int, ...]]:
    query, key = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (len(TOKENS), HIDDEN), "output_norm.weight": (HIDDEN,)}
    for index in range(LAYERS):
        layer = {
            "attn_norm": (HIDDEN,),
            "ffn_norm": (HIDDEN,),
            "attn_q": (query, HIDDEN),
            "attn_k": (key, HIDDEN),
            "attn_v": (key, HIDDEN),
            "attn_output": (HIDDEN, query),
            "ffn_gate": (INTERMEDIATE, HIDDEN),
            "ffn_up": (INTERMEDIATE, HIDDEN),
            "ffn_down": (HIDDEN, INTERMEDIATE),
        }
        shapes.update({f"blk.{index}.{name}.weight": shape for name, shape in layer.items()})
    return shapes


def write_model(
    path: Path, *, metadata: dict[str, Any] | None = None, changed: dict[str, np.ndarray] | None = None
) -> Path:
    """A GGUF file of a decoder in Q8_0. `metadata`: instead of some of its own, None leaves one out. `changed`:
    tensors, in float32."""
    chance = np.random.default_rng(0)
    kinds, plain = {}, {}
    for name, shape in gguf_tensors().items():
        values = (changed or {}).get(name)
        if values is None:
            values = chance.normal(size=shape).astype(np.float32) * 0.05
        if values.ndim == 2:
            kinds[name] = (values, gguf.GGMLQuantizationType.Q8_0)
        else:
            plain[name] = values
    wanted = {key: value for key, value in {**METADATA, **(metadata or {})}.items() if value is not None}
    return write_gguf(path, "llama", metadata=wanted, tensors=plain, quantised=kinds)


# What stands where numbers do when a file is meant to do harm.
_INTEGERS = (0, 1, 2, 3, 7, 31, 33, 127, 128, 255, 256, 4096, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1)
_LONG = (*_INTEGERS, 2**32, 2**33 + 1, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 1)
_FLOATS = (0.0, -0.0, -1.0, 1e-45, 1e-38, 1.0, 1e38, float("inf"), float("-inf"), float("nan"))


def mutations(header: bytes, seed: int, count: int) -> Iterator[bytes]:
    """`count` headers of the same length, each with one to four places changed."""
    chance = random.Random(seed)
    for _ in range(count):
        changed = bytearray(header)
        for _ in range(chance.choice((1, 1, 1, 2, 4))):
            at = chance.randrange(len(changed) - 8)
            match chance.randrange(7):
                case 0:
                    changed[at] ^= 1 << chance.randrange(8)
                case 1:
                    changed[at] = chance.randrange(256)
                case 2:
                    changed[at : at + 4] = struct.pack("<I", chance.choice(_INTEGERS))
                case 3:
                    changed[at : at + 8] = struct.pack("<Q", chance.choice(_LONG))
                case 4:
                    changed[at : at + 4] = struct.pack("<f", chance.choice(_FLOATS))
                case 5:  # swapped
                    changed[at : at + 4], changed[at + 4 : at + 8] = changed[at + 4 : at + 8], changed[at : at + 4]
                case 6:  # a piece of it again, over another
                    length = chance.randrange(1, 64)
                    from_ = chance.randrange(len(changed) - length)
                    to = chance.randrange(len(changed) - length)
                    changed[to : to + length] = changed[from_ : from_ + length]
        yield bytes(changed)


_DELETED = object()
_VALUES: tuple[Any, ...] = (
    *(None, True, False, "", "x", "float32", "F32", "I64", "F8_E4M3", "BOOL", [], [1], [[]], {}, {"x": 1}, _DELETED),
    *(0, -1, 1, 2, 3, 5, 16, 63, 4096, 2**31 - 1, 2**32, 2**63, 2**64, 10**400, -(10**400)),
    *(0.0, 0.5, -0.5, 1.0, 1e-320, 1e308, float("nan"), float("inf"), float("-inf")),
)


def altered(table: dict[str, Any], seed: int, count: int) -> Iterator[dict[str, Any]]:
    """`count` copies of what a JSON file holds, each with one to three of its values others."""
    chance = random.Random(seed)
    for _ in range(count):
        changed = copy.deepcopy(table)
        for _ in range(chance.choice((1, 1, 2, 3))):
            inside: Any = changed
            while True:
                keys = list(inside) if isinstance(inside, dict) else list(range(len(inside)))
                if not keys:
                    break
                key = chance.choice(keys)
                deeper = inside[key]
                if isinstance(deeper, dict | list) and deeper and chance.random() < 0.8:
                    inside = deeper
                    continue
                value = chance.choice(_VALUES)
                if value is _DELETED:
                    del inside[key]
                else:
                    inside[key] = copy.deepcopy(value)
                break
        yield changed
