"""Configs of every supported family, and the names of what is refused."""

import math
from dataclasses import replace
from typing import Any

import pytest

from models.decoder.config import DecoderConfig, from_hf
from models.decoder.families.layout import Part
from models.decoder.frequencies import default_frequencies
from models.decoder.gguf_config import from_gguf
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


def frequencies(config: DecoderConfig) -> tuple[float, ...]:
    """Of a model that has one rope."""
    (rope,) = config.ropes
    return rope.inv_freq


def test_the_same_model_reads_the_same_from_both_forms() -> None:
    from_metadata = from_gguf(GGUF, rope_factors=None, tied=False)
    assert from_metadata.layout != from_hf(HF).layout
    assert replace(from_metadata, layout=from_hf(HF).layout) == from_hf(HF)


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
    assert frequencies(older)[0] == frequencies(plain)[0]  # short wavelengths are kept
    assert frequencies(older)[-1] == pytest.approx(frequencies(plain)[-1] / 8)  # long ones are stretched


def test_gguf_rope_factors_divide_the_frequencies() -> None:
    plain = from_gguf(GGUF, rope_factors=None, tied=True)
    scaled = from_gguf(GGUF, rope_factors=(2.0,) * 8, tied=True)
    assert frequencies(scaled) == tuple(frequency / 2 for frequency in frequencies(plain))
    assert scaled.tie_word_embeddings


def windows(**change: Any) -> list[int | None]:
    """Of four layers."""
    config = from_hf({**HF, "num_hidden_layers": 4, **change})
    assert config.max_position_embeddings == HF["max_position_embeddings"]  # a window is no limit of the context
    return [layer.window for layer in config.layers]


MISTRAL, QWEN2, GEMMA3 = ["MistralForCausalLM"], ["Qwen2ForCausalLM"], ["Gemma3ForCausalLM"]
SMOLLM3, PHI3 = ["SmolLM3ForCausalLM"], ["Phi3ForCausalLM"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"architectures": MISTRAL, "sliding_window": 64}, [64] * 4),
        ({"architectures": MISTRAL, "sliding_window": None}, [None] * 4),
        ({"architectures": PHI3, "sliding_window": 64}, [64] * 4),
        ({"architectures": QWEN2, "sliding_window": 64, "use_sliding_window": True}, [None] * 4),  # from the 28th on
        (
            {"architectures": QWEN2, "sliding_window": 64, "use_sliding_window": True, "max_window_layers": 3},
            [None, None, None, 64],
        ),
        (
            {"architectures": QWEN2, "sliding_window": 64, "use_sliding_window": False, "max_window_layers": 3},
            [None] * 4,
        ),
        ({"architectures": SMOLLM3, "sliding_window": 64, "use_sliding_window": True}, [None, None, None, 64]),
        ({"architectures": GEMMA3, "sliding_window": 64, "sliding_window_pattern": 2}, [64, None, 64, None]),
        ({"architectures": GEMMA3}, [4096] * 4),  # every sixth would be without
        ({"sliding_window": 64}, [None] * 4),
        (
            {"sliding_window": 64, "layer_types": ["full_attention", "sliding_attention"] * 2},
            [None, 64, None, 64],
        ),
    ],
)
def test_which_layers_have_a_sliding_window(change: dict[str, Any], expected: list[int | None]) -> None:
    assert windows(**change) == expected


def test_some_layers_of_smollm3_have_no_rope() -> None:
    layers = from_hf({**HF, "architectures": SMOLLM3, "num_hidden_layers": 8}).layers
    assert [bool(layer.rope.inv_freq) for layer in layers] == [True, True, True, False] * 2
    assert layers[0].rope.inv_freq == default_frequencies(2e6, 16)  # its own theta
    given = {"no_rope_layers": [0, 1, 1], "no_rope_layer_interval": 1}  # a list for more layers than there are
    assert [bool(layer.rope.inv_freq) for layer in from_hf({**HF, "architectures": SMOLLM3, **given}).layers] == [0, 1]


def test_gemma_s_layers_have_two_ropes_however_they_are_written() -> None:
    scaling = {"rope_type": "linear", "factor": 8.0}
    base = {**HF, "architectures": GEMMA3, "sliding_window_pattern": 2}
    older = from_hf({**base, "rope_theta": 5e5, "rope_local_base_freq": 2e4, "rope_scaling": scaling})
    nested = {
        "full_attention": {**scaling, "rope_theta": 5e5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
    }
    newer = from_hf({**base, "rope_parameters": nested})
    assert older == newer
    local, everywhere = (layer.rope for layer in newer.layers)
    assert newer.ropes == (local, everywhere)
    assert local.inv_freq == default_frequencies(2e4, 256)
    assert everywhere.inv_freq == tuple(frequency / 8 for frequency in default_frequencies(5e5, 256))
    usual = from_hf(base).layers
    assert [layer.rope.inv_freq for layer in usual] == [default_frequencies(theta, 256) for theta in (1e4, 1e6)]
    assert usual[0].scale == 1 / 16  # by query_pre_attn_scalar, 256


def test_the_text_part_of_a_vision_model_is_what_its_text_config_says() -> None:
    """As the published 4B checkpoint has it: what is missing there is the class's default."""
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    config = from_hf({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text, "vision_config": {}})
    assert (config.hidden_size, config.num_layers, config.vocab_size, config.num_heads) == (2560, 34, 262208, 8)
    assert config.tie_word_embeddings
    assert config.layout.names[Part.NORM] == "language_model.model.norm"
    assert [layer.window for layer in config.layers] == ([1024] * 5 + [None]) * 5 + [1024] * 4


def test_longrope_is_served_in_its_original_context() -> None:
    """Beyond it, a sequence's frequencies are others, for all of its positions."""
    factors = {"type": "su", "short_factor": [1.0, 2.0], "long_factor": [4.0, 8.0]}
    phi = {**HF, "architectures": PHI3, "original_max_position_embeddings": 32, "partial_rotary_factor": 0.25}
    config = from_hf({**phi, "rope_scaling": factors})
    assert config.max_position_embeddings == 32
    (rope,) = config.ropes
    assert rope.inv_freq == (1.0, default_frequencies(10000.0, 4)[1] / 2)
    assert rope.scale == pytest.approx((1 + math.log(4) / math.log(32)) ** 0.5)
    assert from_hf(phi).max_position_embeddings == HF["max_position_embeddings"]


def test_linear_rope_stretches_all_frequencies() -> None:
    plain = from_hf(HF)
    scaled = from_hf({**HF, "rope_scaling": {"type": "linear", "factor": 4.0}})
    assert frequencies(scaled) == tuple(frequency / 4 for frequency in frequencies(plain))
    gguf = from_gguf(
        {**GGUF, "llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}, rope_factors=None, tied=True
    )
    assert frequencies(gguf) == frequencies(scaled)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"architectures": ["MixtralForCausalLM"]}, "MixtralForCausalLM"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}}, "LlamaForCausalLM with rope type dynamic"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0}}, "mscale"),
        ({"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0]}}, "1 values in short_factor, not 8"),
        ({"partial_rotary_factor": 0.2}, "partial_rotary_factor=0.2"),  # 3 of 16 components
        ({"layer_types": ["full_attention", "chunked_attention"]}, "layers of chunked_attention"),
        ({"layer_types": ["full_attention"]}, "1 layer_types for 2 layers"),
        ({"layer_types": ["sliding_attention"] * 2}, "sliding_window=None"),
        ({"architectures": MISTRAL, "sliding_window": 0}, "sliding_window=0"),
        ({"architectures": SMOLLM3, "no_rope_layers": [1]}, "1 no_rope_layers for 2 layers"),
        ({"architectures": GEMMA3, "final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"architectures": GEMMA3, "use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ],
)
def test_refusals_name_the_reason_and_the_alternative(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelLoadError, match=f"{named}.*upstream"):
        from_hf({**HF, **change})


def test_rope_parameters_that_lack_a_value_are_refused_by_its_name() -> None:
    with pytest.raises(ModelLoadError, match="LlamaForCausalLM lacks factor"):
        from_hf({**HF, "rope_parameters": {"rope_type": "yarn"}})


def test_a_config_that_lacks_a_size_is_refused_by_its_name() -> None:
    with pytest.raises(ModelLoadError, match="hidden_size"):
        from_hf({key: value for key, value in HF.items() if key != "hidden_size"})
    with pytest.raises(ModelLoadError, match=r"llama\.block_count"):
        from_gguf({k: v for k, v in GGUF.items() if k != "llama.block_count"}, rope_factors=None, tied=True)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"general.architecture": "gemma3"}, "gemma3 .* safetensors"),
        ({"general.architecture": "mamba"}, "mamba"),
        ({"llama.rope.scaling.type": "yarn"}, "yarn"),
        ({"llama.expert_count": 8}, "experts"),
        ({"llama.rope.dimension_count": 8}, "partial rotary"),
    ],
)
def test_gguf_refusals_name_the_reason_and_the_alternative(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelLoadError, match=f"{named}.*upstream"):
        from_gguf({**GGUF, **change}, rope_factors=None, tied=True)
