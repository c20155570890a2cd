"""The decoder that a GGUF file describes (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md)."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from models.decoder.config import DecoderConfig, described
from models.decoder.families.layout import Part, TensorKey
from models.decoder.families.listed import of_gguf
from models.decoder.tensors import Shape, require_tensors
from models.errors import ModelLoadError, require
from models.files.fields import MOST_HEAD_DIM, Fields
from models.files.gguf import F32, GGUFFile

WHERE = "the GGUF file"  # for messages
ROPE_FACTORS = "rope_freqs.weight"
TOKENS = "tokenizer.ggml.tokens"

# The keys of `config.json`, and what metadata call them behind the architecture's name.
_KEYS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "sliding_window": "attention.sliding_window",
    "rope_theta": "rope.freq_base",
    "rope_type": "rope.scaling.type",
    "factor": "rope.scaling.factor",
}


def describe_gguf(file: GGUFFile) -> DecoderConfig:
    """The decoder in a file, whose tensors are what its metadata say. Raises ModelLoadError."""
    tokens = Fields(file.metadata, str(file.path)).items(TOKENS, str, "texts") or ()
    architecture = architecture_of(file.metadata)
    _, form = of_gguf(architecture)
    config = from_gguf(
        file.metadata,
        rope_factors=_rope_factors(file),
        tied=form.layout.name(TensorKey(Part.HEAD)) not in file.tensors,
        num_tokens=len(tokens),
    )
    require_gguf_tensors(file, config)
    return config


def from_gguf(
    metadata: Mapping[str, Any], *, rope_factors: tuple[float, ...] | None, tied: bool, num_tokens: int | None = None
) -> DecoderConfig:
    """The decoder described by GGUF metadata.

    `rope_factors`: the `rope_freqs.weight` tensor, by which llama3 frequencies are divided. `num_tokens`: of its
    tokenizer, where the metadata don't say the vocabulary's size. Raises ModelLoadError.
    """
    architecture = architecture_of(metadata)
    family, form = of_gguf(architecture)
    fields = Fields(metadata, WHERE, f"{architecture}.", names=_KEYS)
    require(fields.integer("expert_count", 0, least=0) == 0, architecture, "experts")
    scaling = fields.text("rope_type", "none")
    require(scaling in ("none", "linear"), architecture, f"rope scaling {scaling}")
    defaults = {**family.defaults, "vocab_size": num_tokens}
    known = {"tie_word_embeddings": tied, "rope_scaling": metadata if scaling == "linear" else None}
    named_defaults, named_known = ({fields.name(key): each[key] for key in each} for each in (defaults, known))
    fields = Fields({**named_defaults, **metadata, **named_known}, WHERE, f"{architecture}.", names=_KEYS)
    config = described(fields, family, form.layout, architecture, rope_factors=rope_factors)
    head_dim = config.head_dim
    require(fields.integer("attention.value_length", head_dim) == head_dim, architecture, "values of another length")
    require(fields.integer("rope.dimension_count", head_dim) == head_dim, architecture, "partial rotary")
    return config


def architecture_of(metadata: Mapping[str, Any]) -> str:
    return Fields(metadata, WHERE).text("general.architecture")


def _rope_factors(file: GGUFFile) -> tuple[float, ...] | None:
    found = file.tensors.get(ROPE_FACTORS)
    if found is None:
        return None
    if found.kind is not F32 or len(found.shape) != 1 or found.shape[0] > MOST_HEAD_DIM:
        raise ModelLoadError(f"{file.path}: {ROPE_FACTORS} is {found.shape} in {found.kind.name}, not a head's factors")
    return tuple(file.blocks(ROPE_FACTORS).view(np.float32).reshape(-1).tolist())


def require_gguf_tensors(file: GGUFFile, config: DecoderConfig) -> None:
    """Raises ModelLoadError naming the first tensor that is missing, or of another shape than the config says."""

    def shape_of(name: str, _: Shape) -> Shape | None:
        found = file.tensors.get(name)
        return None if found is None else found.shape

    require_tensors(config, shape_of, str(file.path))
