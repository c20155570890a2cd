"""Configs of every supported family, and the names of what is refused."""

from typing import Any

import pytest

from models.config import from_gguf, from_hf
from models.errors import ModelLoadError

HF: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 32,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
}
GGUF: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.vocab_size": 32,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.block_count": 2,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.context_length": 128,
    "llama.attention.layer_norm_rms_epsilon": 1e-6,
}


def test_the_same_model_reads_the_same_from_both_forms() -> None:
    assert from_hf(HF) == from_gguf(GGUF, rope_factors=None, tied=False)


def test_rope_settings_of_older_and_newer_configs_agree() -> None:
    llama3 = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
        "rope_type": "llama3",
    }
    older = from_hf({**HF, "rope_theta": 500000.0, "rope_scaling": llama3})
    newer = from_hf({**HF, "rope_parameters": {**llama3, "rope_theta": 500000.0}})
    plain = from_hf({**HF, "rope_theta": 500000.0})
    assert older == newer
    assert older.inv_freq[0] == plain.inv_freq[0]  # short wavelengths are kept
    assert older.inv_freq[-1] == pytest.approx(plain.inv_freq[-1] / 8)  # long ones are stretched


def test_gguf_rope_factors_divide_the_frequencies() -> None:
    plain = from_gguf(GGUF, rope_factors=None, tied=True)
    scaled = from_gguf(GGUF, rope_factors=(2.0,) * 8, tied=True)
    assert scaled.inv_freq == tuple(frequency / 2 for frequency in plain.inv_freq)
    assert scaled.tie_word_embeddings


@pytest.mark.parametrize(
    ("change", "positions"),
    [
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 64}, 64),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": None}, HF["max_position_embeddings"]),
        ({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 64, "use_sliding_window": True}, 64),
        ({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 64, "use_sliding_window": False}, 128),
        ({"sliding_window": 64}, HF["max_position_embeddings"]),
    ],
)
def test_a_sliding_window_is_the_longest_context(change: dict[str, Any], positions: int) -> None:
    assert from_hf({**HF, **change}).max_position_embeddings == positions


def test_linear_rope_stretches_all_frequencies() -> None:
    plain = from_hf(HF)
    scaled = from_hf({**HF, "rope_scaling": {"type": "linear", "factor": 4.0}})
    assert scaled.inv_freq == tuple(frequency / 4 for frequency in plain.inv_freq)
    gguf = from_gguf(
        {**GGUF, "llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}, rope_factors=None, tied=True
    )
    assert gguf.inv_freq == tuple(frequency / 4 for frequency in from_gguf(GGUF, rope_factors=None, tied=True).inv_freq)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"architectures": ["MixtralForCausalLM"]}, "MixtralForCausalLM"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_parameters": {"rope_type": "longrope", "factor": 4.0}}, "longrope"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0}}, "mscale"),
        ({"partial_rotary_factor": 0.5}, "partial rotary"),
    ],
)
def test_refusals_name_the_reason_and_the_alternative(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelLoadError, match=f"{named}.*upstream"):
        from_hf({**HF, **change})


def test_a_config_that_lacks_a_size_is_refused_by_its_name() -> None:
    with pytest.raises(ModelLoadError, match="hidden_size"):
        from_hf({key: value for key, value in HF.items() if key != "hidden_size"})
    with pytest.raises(ModelLoadError, match=r"llama\.block_count"):
        from_gguf({k: v for k, v in GGUF.items() if k != "llama.block_count"}, rope_factors=None, tied=True)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"general.architecture": "gemma3"}, "gemma3"),
        ({"llama.rope.scaling.type": "yarn"}, "yarn"),
        ({"llama.expert_count": 8}, "experts"),
        ({"llama.rope.dimension_count": 8}, "partial rotary"),
    ],
)
def test_gguf_refusals_name_the_reason_and_the_alternative(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelLoadError, match=f"{named}.*upstream"):
        from_gguf({**GGUF, **change}, rope_factors=None, tied=True)
