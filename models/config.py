"""What a decoder-only transformer is made of, read from `config.json` or from GGUF metadata. Free of torch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models.errors import ModelLoadError

UPSTREAM = "serve it with another server (vLLM, SGLang, llama.cpp, …) and add that as an upstream model"

_HF_ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}

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
    """The switches of one decoder family. `inv_freq` is the rope's, after any frequency scaling: [head_dim / 2]."""

    architecture: str  # llama | qwen2 | qwen3
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    inv_freq: tuple[float, ...]
    tie_word_embeddings: bool
    rope_scale: float = 1.0  # of its cosines and sines
    qkv_bias: bool = False
    output_bias: bool = False  # of the attention's output projection
    mlp_bias: bool = False
    qk_norm: bool = False  # RMSNorm over head_dim on q and k, before the rope

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.num_heads // self.num_kv_heads


def default_frequencies(theta: float, head_dim: int) -> tuple[float, ...]:
    """RoFormer (https://arxiv.org/abs/2104.09864), section 3.4.3."""
    return tuple(theta ** (-2 * i / head_dim) for i in range(head_dim // 2))


def llama3_frequencies(
    base: tuple[float, ...], factor: float, low: float, high: float, original_context: int
) -> tuple[float, ...]:
    """Llama 3.1's rope scaling: long wavelengths are stretched by `factor`, short ones kept, those between blended.

    `low` and `high` are the model's `low_freq_factor` and `high_freq_factor`.
    """

    def scale(frequency: float) -> float:
        turns = original_context * frequency / (2 * math.pi)  # in the original context
        if turns < low:
            return frequency / factor
        if turns > high:
            return frequency
        smooth = (turns - low) / (high - low)
        return (1 - smooth) * frequency / factor + smooth * frequency

    return tuple(scale(frequency) for frequency in base)


def yarn_frequencies(
    theta: float, head_dim: int, factor: float, original_context: int, fast: float, slow: float, *, truncate: bool
) -> tuple[float, ...]:
    """YaRN (https://arxiv.org/abs/2309.00071): frequencies that turn more than `fast` times in the original context are
    kept, those that turn less than `slow` times are divided by `factor`, those between blended by their place."""

    def place(turns: float) -> float:
        return head_dim * math.log(original_context / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = place(fast), place(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = high - low or 0.001

    def blended(index: int, frequency: float) -> float:
        stretched = min(1.0, max(0.0, (index - low) / width))
        return frequency / factor * stretched + frequency * (1 - stretched)

    return tuple(blended(index, frequency) for index, frequency in enumerate(default_frequencies(theta, head_dim)))


def from_hf(config: Mapping[str, Any]) -> DecoderConfig:
    """The decoder described by a `config.json`. Raises ModelLoadError naming what is not supported."""
    named = (config.get("architectures") or [str(config.get("model_type"))])[0]
    architecture = _HF_ARCHITECTURES.get(named)
    if architecture is None:
        known = ", ".join(_HF_ARCHITECTURES)
        raise ModelLoadError(f"architecture {named} is not supported (supported: {known}); {UPSTREAM}")
    _require(config.get("hidden_act", "silu") in ("silu", "swish"), named, f"hidden_act={config.get('hidden_act')}")
    missing = [name for name in _SIZES if config.get(name) is None]
    if missing:
        raise ModelLoadError(f"config.json of {named} lacks {', '.join(missing)}")
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    bias = architecture == "qwen2" or bool(config.get("attention_bias"))
    inv_freq, rope_scale = _hf_frequencies(config, head_dim, named)
    return DecoderConfig(
        architecture=architecture,
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=config["num_attention_heads"],
        num_kv_heads=config.get("num_key_value_heads") or config["num_attention_heads"],
        head_dim=head_dim,
        max_position_embeddings=_context(config, named),
        rms_norm_eps=config["rms_norm_eps"],
        inv_freq=inv_freq,
        rope_scale=rope_scale,
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=bias,
        output_bias=architecture != "qwen2" and bias,
        mlp_bias=bool(config.get("mlp_bias")),
        qk_norm=architecture == "qwen3",
    )


def _require(condition: bool, architecture: str, what: str) -> None:
    if not condition:
        raise ModelLoadError(f"{architecture} with {what} is not supported; {UPSTREAM}")


def _context(config: Mapping[str, Any], named: str) -> int:
    """Positions that a sequence may have. Within a sliding window its attention is that of all positions, so a model
    with one is served up to its width; Qwen2's have a switch for theirs."""
    positions: int = config["max_position_embeddings"]
    window: int | None = config.get("sliding_window")
    slides = config.get("use_sliding_window", named == "MistralForCausalLM")
    return min(positions, window) if slides and window else positions


def _hf_frequencies(config: Mapping[str, Any], head_dim: int, named: str) -> tuple[tuple[float, ...], float]:
    """Of the rope, and the scale of its cosines and sines.

    `rope_parameters` is what transformers 5 writes; before it, `rope_theta` and `rope_scaling`."""
    rope: Mapping[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    base = default_frequencies(theta, head_dim)
    rotary = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    _require(rotary == 1.0, named, f"partial rotary ({rotary})")
    match kind:
        case "default":
            return base, 1.0
        case "linear":  # https://arxiv.org/abs/2306.15595
            return tuple(frequency / rope["factor"] for frequency in base), 1.0
        case "yarn":
            return _yarn(config, rope, theta, head_dim, named)
    _require(kind == "llama3", named, f"rope type {kind}")
    factors = rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"]
    return llama3_frequencies(base, *factors, rope["original_max_position_embeddings"]), 1.0


def _yarn(
    config: Mapping[str, Any], rope: Mapping[str, Any], theta: float, head_dim: int, named: str
) -> tuple[tuple[float, ...], float]:
    _require(not (rope.get("mscale") or rope.get("mscale_all_dim")), named, "YaRN's mscale")
    factor = float(rope["factor"])
    frequencies = yarn_frequencies(
        theta,
        head_dim,
        factor,
        rope.get("original_max_position_embeddings") or config["max_position_embeddings"],
        rope.get("beta_fast") or 32,
        rope.get("beta_slow") or 1,
        truncate=rope.get("truncate", True),
    )
    usual = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
    return frequencies, float(rope.get("attention_factor") or usual)


def from_gguf(metadata: Mapping[str, Any], *, rope_factors: tuple[float, ...] | None, tied: bool) -> DecoderConfig:
    """The decoder described by GGUF metadata (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).

    `rope_factors`: the `rope_freqs.weight` tensor, by which llama3 frequencies are divided. Raises ModelLoadError.
    """
    architecture = str(metadata.get("general.architecture"))
    if architecture not in _HF_ARCHITECTURES.values():
        known = ", ".join(_HF_ARCHITECTURES.values())
        raise ModelLoadError(f"GGUF architecture {architecture} is not supported (supported: {known}); {UPSTREAM}")

    def value(key: str, default: Any = None) -> Any:
        found = metadata.get(f"{architecture}.{key}", default)
        if found is None:
            raise ModelLoadError(f"the GGUF file lacks {architecture}.{key}")
        return found

    _require(value("expert_count", 0) == 0, architecture, "experts")
    scaling = value("rope.scaling.type", "none")
    _require(scaling in ("none", "linear"), architecture, f"rope scaling {scaling}")
    stretch = float(value("rope.scaling.factor")) if scaling == "linear" else 1.0
    heads = value("attention.head_count")
    head_dim = value("attention.key_length", value("embedding_length") // heads)
    _require(value("rope.dimension_count", head_dim) == head_dim, architecture, "partial rotary")
    base = default_frequencies(float(value("rope.freq_base", 10000.0)), head_dim)
    base = tuple(frequency / stretch for frequency in base)
    if rope_factors is not None:
        base = tuple(frequency / factor for frequency, factor in zip(base, rope_factors, strict=True))
    return DecoderConfig(
        architecture=architecture,
        vocab_size=metadata.get(f"{architecture}.vocab_size") or len(metadata["tokenizer.ggml.tokens"]),
        hidden_size=value("embedding_length"),
        intermediate_size=value("feed_forward_length"),
        num_layers=value("block_count"),
        num_heads=heads,
        num_kv_heads=value("attention.head_count_kv", heads),
        head_dim=head_dim,
        max_position_embeddings=value("context_length"),
        rms_norm_eps=value("attention.layer_norm_rms_epsilon"),
        inv_freq=base,
        tie_word_embeddings=tied,
        qkv_bias=architecture == "qwen2",
        qk_norm=architecture == "qwen3",
    )
