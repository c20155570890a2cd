"""What a decoder-only transformer is made of, read from `config.json` or from GGUF metadata. Free of torch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from models.errors import UPSTREAM, ModelLoadError, require
from models.frequencies import Rope, default_frequencies
from models.layers import LayerSpec, layers_from_hf

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

_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
    "rms_norm_eps",
)


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
    """The decoder described by a `config.json`. Raises ModelLoadError naming what is not supported."""
    named = (config.get("architectures") or [str(config.get("model_type"))])[0]
    family = _HF_FAMILIES.get(named)
    if family is None:
        known = ", ".join(_HF_FAMILIES)
        raise ModelLoadError(f"architecture {named} is not supported (supported: {known}); {UPSTREAM}")
    config = {**family.defaults, **(config.get("text_config") or config)}
    _require_known_parts(config, named)
    missing = [name for name in _SIZES if config.get(name) is None]
    if missing:
        raise ModelLoadError(f"config.json of {named} lacks {', '.join(missing)}")
    architecture, hidden_size = family.architecture, config["hidden_size"]
    head_dim = config.get("head_dim") or hidden_size // config["num_attention_heads"]
    bias = architecture == "qwen2" or bool(config.get("attention_bias"))
    is_gemma = architecture == "gemma3"
    layers = layers_from_hf(config, architecture=architecture, head_dim=head_dim, named=named)
    contexts = [layer.rope.context for layer in layers if layer.rope.context is not None]
    return DecoderConfig(
        architecture=architecture,
        vocab_size=config["vocab_size"],
        hidden_size=hidden_size,
        intermediate_size=config["intermediate_size"],
        layers=layers,
        num_heads=config["num_attention_heads"],
        num_kv_heads=config.get("num_key_value_heads") or config["num_attention_heads"],
        head_dim=head_dim,
        max_position_embeddings=min([config["max_position_embeddings"], *contexts]),
        rms_norm_eps=config["rms_norm_eps"],
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=bias,
        output_bias=architecture != "qwen2" and bias,
        mlp_bias=bool(config.get("mlp_bias")),
        qk_norm=architecture in ("qwen3", "gemma3"),
        fused_weights=architecture == "phi3",
        activation=_ACTIVATIONS[_activation(config)],
        branch_norms=is_gemma,
        norm_offset=1.0 if is_gemma else 0.0,
        embedding_scale=math.sqrt(hidden_size) if is_gemma else 1.0,
        weights_prefix="language_model." if named == "Gemma3ForConditionalGeneration" else "",
    )


def _activation(config: Mapping[str, Any]) -> str:
    return str(config.get("hidden_activation") or config.get("hidden_act") or "silu")


def _require_known_parts(config: Mapping[str, Any], named: str) -> None:
    activation = _activation(config)
    require(activation in _ACTIVATIONS, named, f"hidden_act={activation}")
    for name in ("attn_logit_softcapping", "final_logit_softcapping", "use_bidirectional_attention"):
        require(not config.get(name), named, f"{name}={config.get(name)}")


def from_gguf(metadata: Mapping[str, Any], *, rope_factors: tuple[float, ...] | None, tied: bool) -> DecoderConfig:
    """The decoder described by GGUF metadata (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).

    `rope_factors`: the `rope_freqs.weight` tensor, by which llama3 frequencies are divided. Raises ModelLoadError.
    """
    architecture = str(metadata.get("general.architecture"))
    if architecture not in _GGUF_ARCHITECTURES:
        known = ", ".join(_GGUF_ARCHITECTURES)
        safetensors = "load its safetensors, or " if architecture in _SAFETENSORS_ONLY else ""
        raise ModelLoadError(
            f"GGUF architecture {architecture} is not supported (supported: {known}); {safetensors}{UPSTREAM}"
        )

    def value(key: str, default: Any = None) -> Any:
        found = metadata.get(f"{architecture}.{key}", default)
        if found is None:
            raise ModelLoadError(f"the GGUF file lacks {architecture}.{key}")
        return found

    require(value("expert_count", 0) == 0, architecture, "experts")
    scaling = value("rope.scaling.type", "none")
    require(scaling in ("none", "linear"), architecture, f"rope scaling {scaling}")
    stretch = float(value("rope.scaling.factor")) if scaling == "linear" else 1.0
    heads = value("attention.head_count")
    head_dim = value("attention.key_length", value("embedding_length") // heads)
    require(value("rope.dimension_count", head_dim) == head_dim, architecture, "partial rotary")
    base = default_frequencies(float(value("rope.freq_base", 10000.0)), head_dim)
    base = tuple(frequency / stretch for frequency in base)
    if rope_factors is not None:
        base = tuple(frequency / factor for frequency, factor in zip(base, rope_factors, strict=True))
    return DecoderConfig(
        architecture=architecture,
        vocab_size=metadata.get(f"{architecture}.vocab_size") or len(metadata["tokenizer.ggml.tokens"]),
        hidden_size=value("embedding_length"),
        intermediate_size=value("feed_forward_length"),
        layers=(LayerSpec(Rope(base)),) * value("block_count"),
        num_heads=heads,
        num_kv_heads=value("attention.head_count_kv", heads),
        head_dim=head_dim,
        max_position_embeddings=value("context_length"),
        rms_norm_eps=value("attention.layer_norm_rms_epsilon"),
        tie_word_embeddings=tied,
        qkv_bias=architecture == "qwen2",
        qk_norm=architecture == "qwen3",
    )
