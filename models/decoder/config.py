"""What a decoder-only transformer is made of, read from `config.json` or from GGUF metadata."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from models.decoder.frequencies import Rope, default_frequencies, stretched
from models.decoder.layers import LayerSpec, layers_from_hf
from models.errors import UPSTREAM, ModelLoadError, require
from models.files.fields import (
    MOST_EPSILON,
    MOST_HEAD_DIM,
    MOST_HEADS,
    MOST_LAYERS,
    MOST_TOKENS,
    MOST_WIDTH,
    Fields,
)

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class _Family:
    """What a `config.json` leaves to the class that it names."""

    architecture: str
    defaults: Mapping[str, Any] = field(default_factory=dict)


_GEMMA3 = _Family(
    "gemma3",
    {
        "vocab_size": 262208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "tie_word_embeddings": True,
    },
)
_HF_FAMILIES = {
    "LlamaForCausalLM": _Family("llama"),
    "MistralForCausalLM": _Family("mistral"),
    "Qwen2ForCausalLM": _Family("qwen2", {"max_window_layers": 28}),
    "Qwen3ForCausalLM": _Family("qwen3", {"max_window_layers": 28}),
    "SmolLM3ForCausalLM": _Family(
        "smollm3", {"no_rope_layer_interval": 4, "rope_theta": 2e6, "tie_word_embeddings": True}
    ),
    "Phi3ForCausalLM": _Family("phi3", {"original_max_position_embeddings": 4096}),
    "Gemma3ForCausalLM": _GEMMA3,
    "Gemma3ForConditionalGeneration": _GEMMA3,  # its text part, which `text_config` describes
}
_GGUF_ARCHITECTURES = ("llama", "qwen2", "qwen3")
_SAFETENSORS_ONLY = ("smollm3", "phi3", "gemma3")
_ACTIVATIONS: Mapping[str, Activation] = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """The switches of one decoder family; `layers` has those that may differ from layer to layer."""

    architecture: str  # llama | mistral | qwen2 | qwen3 | smollm3 | phi3 | gemma3
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: tuple[LayerSpec, ...]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    tie_word_embeddings: bool
    qkv_bias: bool = False
    output_bias: bool = False  # of the attention's output projection
    mlp_bias: bool = False
    qk_norm: bool = False  # RMSNorm over head_dim on q and k, before the rope
    fused_weights: bool = False  # stored: q, k and v as one, gate and up as one
    activation: Activation = "silu"  # of the gate
    branch_norms: bool = False  # RMSNorm of what attention and MLP give, too, before it is added to the residual
    norm_offset: float = 0.0  # what norms add to their stored weights
    embedding_scale: float = 1.0
    weights_prefix: str = ""  # of all tensors' names

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def ropes(self) -> tuple[Rope, ...]:
        """Each once."""
        return tuple(dict.fromkeys(layer.rope for layer in self.layers))


def from_hf(config: Mapping[str, Any]) -> DecoderConfig:
    """The decoder described by a `config.json`. Raises ModelLoadError naming what is not supported, or no model's."""
    outer = Fields(config, "config.json")
    architectures = outer.items("architectures", str, "texts") or [outer.text("model_type", "none")]
    named = architectures[0]
    family = _HF_FAMILIES.get(named)
    if family is None:
        known = ", ".join(_HF_FAMILIES)
        raise ModelLoadError(f"architecture {named} is not supported (supported: {known}); {UPSTREAM}")
    fields = Fields({**family.defaults, **(outer.table("text_config") or config)}, f"config.json of {named}")
    _require_known_parts(fields, named)
    architecture = family.architecture
    hidden_size = fields.integer("hidden_size", most=MOST_WIDTH)
    heads = fields.integer("num_attention_heads", most=MOST_HEADS)
    kv_heads = fields.integer("num_key_value_heads", heads, most=MOST_HEADS)
    head_dim = fields.maybe_integer("head_dim", most=MOST_HEAD_DIM) or hidden_size // heads
    _require_heads(fields, "num_attention_heads", heads, "num_key_value_heads", kv_heads, head_dim)
    bias = architecture == "qwen2" or fields.boolean("attention_bias")
    is_gemma = architecture == "gemma3"
    layers = layers_from_hf(fields, architecture=architecture, head_dim=head_dim, named=named)
    contexts = [layer.rope.context for layer in layers if layer.rope.context is not None]
    return DecoderConfig(
        architecture=architecture,
        vocab_size=fields.integer("vocab_size", most=MOST_TOKENS),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size", most=MOST_WIDTH),
        layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=min([fields.integer("max_position_embeddings"), *contexts]),
        rms_norm_eps=fields.number("rms_norm_eps", most=MOST_EPSILON),
        tie_word_embeddings=fields.boolean("tie_word_embeddings"),
        qkv_bias=bias,
        output_bias=architecture != "qwen2" and bias,
        mlp_bias=fields.boolean("mlp_bias"),
        qk_norm=architecture in ("qwen3", "gemma3"),
        fused_weights=architecture == "phi3",
        activation=_ACTIVATIONS[_activation(fields)],
        branch_norms=is_gemma,
        norm_offset=1.0 if is_gemma else 0.0,
        embedding_scale=math.sqrt(hidden_size) if is_gemma else 1.0,
        weights_prefix="language_model." if named == "Gemma3ForConditionalGeneration" else "",
    )


def _activation(fields: Fields) -> str:
    return fields.text("hidden_activation", "") or fields.text("hidden_act", "") or "silu"


def _require_known_parts(fields: Fields, named: str) -> None:
    activation = _activation(fields)
    require(activation in _ACTIVATIONS, named, f"hidden_act={activation}")
    for name in ("attn_logit_softcapping", "final_logit_softcapping", "use_bidirectional_attention"):
        require(not fields.get(name), named, f"{name}={fields.get(name)}")


def _require_heads(fields: Fields, key: str, heads: int, kv_key: str, kv_heads: int, head_dim: int) -> None:
    """Queries share keys and values in whole groups, and a head's halves are turned against each other."""
    if heads % kv_heads:
        names = f"{fields.name(key)} ({heads})", f"{fields.name(kv_key)} ({kv_heads})"
        raise ModelLoadError(f"{fields.where}: {names[0]} is no multiple of {names[1]}")
    if head_dim < 2 or head_dim % 2:
        raise ModelLoadError(f"{fields.where}: heads of {head_dim} components, by {fields.name(key)} ({heads})")


def from_gguf(
    metadata: Mapping[str, Any], *, rope_factors: tuple[float, ...] | None, tied: bool, num_tokens: int | None = None
) -> DecoderConfig:
    """The decoder described by GGUF metadata (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).

    `rope_factors`: the `rope_freqs.weight` tensor, by which llama3 frequencies are divided. `num_tokens`: of its
    tokenizer, where the metadata don't say the vocabulary's size. Raises ModelLoadError.
    """
    architecture = Fields(metadata, "the GGUF file").text("general.architecture")
    if architecture not in _GGUF_ARCHITECTURES:
        known = ", ".join(_GGUF_ARCHITECTURES)
        safetensors = "load its safetensors, or " if architecture in _SAFETENSORS_ONLY else ""
        raise ModelLoadError(
            f"GGUF architecture {architecture} is not supported (supported: {known}); {safetensors}{UPSTREAM}"
        )
    fields = Fields(metadata, "the GGUF file", f"{architecture}.")
    require(fields.integer("expert_count", 0, least=0) == 0, architecture, "experts")
    hidden_size = fields.integer("embedding_length", most=MOST_WIDTH)
    heads = fields.integer("attention.head_count", most=MOST_HEADS)
    kv_heads = fields.integer("attention.head_count_kv", heads, most=MOST_HEADS)
    head_dim = fields.maybe_integer("attention.key_length", most=MOST_HEAD_DIM) or hidden_size // heads
    _require_heads(fields, "attention.head_count", heads, "attention.head_count_kv", kv_heads, head_dim)
    require(fields.integer("attention.value_length", head_dim) == head_dim, architecture, "values of another length")
    require(fields.integer("rope.dimension_count", head_dim) == head_dim, architecture, "partial rotary")
    rope = _gguf_rope(fields, architecture, head_dim, rope_factors)
    return DecoderConfig(
        architecture=architecture,
        vocab_size=fields.integer("vocab_size", num_tokens, most=MOST_TOKENS),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("feed_forward_length", most=MOST_WIDTH),
        layers=(LayerSpec(rope),) * fields.integer("block_count", most=MOST_LAYERS),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=fields.integer("context_length"),
        rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon", most=MOST_EPSILON),
        tie_word_embeddings=tied,
        qkv_bias=architecture == "qwen2",
        qk_norm=architecture == "qwen3",
    )


def _gguf_rope(fields: Fields, architecture: str, head_dim: int, factors: tuple[float, ...] | None) -> Rope:
    scaling = fields.text("rope.scaling.type", "none")
    require(scaling in ("none", "linear"), architecture, f"rope scaling {scaling}")
    base = default_frequencies(fields.number("rope.freq_base", 10000.0), head_dim)
    if scaling == "linear":
        base = stretched(base, fields.number("rope.scaling.factor"))
    if factors is not None:
        if len(factors) != len(base) or not all(0 < factor < math.inf for factor in factors):
            raise ModelLoadError(f"rope_freqs.weight is not {len(base)} finite numbers above 0")
        base = tuple(frequency / factor for frequency, factor in zip(base, factors, strict=True))
    return Rope(base)
