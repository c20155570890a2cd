"""Which decoder a description of a model that sees means, and where its files have it."""

import pytest

from models.decoder.config import from_hf
from models.decoder.families.axes import in_sections, interleaved
from models.decoder.families.layout import Part, TensorKey
from models.errors import ModelLoadError
from tests.models.decoder.test_config import HF

EMBEDDING, HEAD = TensorKey(Part.EMBEDDING), TensorKey(Part.HEAD)
TEXT = {key: value for key, value in HF.items() if key != "architectures"}
SECTIONS = {"rope_type": "default", "mrope_section": [2, 3, 3]}


@pytest.mark.parametrize(
    ("name", "text", "embedding", "head"),
    [
        ("Idefics3", {"model_type": "llama"}, "model.text_model.embed_tokens", "lm_head"),
        ("SmolVLM", {"model_type": "llama"}, "model.text_model.embed_tokens", "lm_head"),
        ("Llava", {"model_type": "mistral"}, "language_model.model.embed_tokens", "language_model.lm_head"),
        ("Llava", {"model_type": "mistral"}, "model.language_model.embed_tokens", "lm_head"),
        ("LlavaOnevision", {}, "language_model.model.embed_tokens", "language_model.lm_head"),
        ("LlavaOnevision", {}, "model.language_model.embed_tokens", "lm_head"),
        ("Qwen2_5_VL", {"rope_parameters": SECTIONS}, "model.embed_tokens", "lm_head"),
        ("Qwen2_5_VL", {"rope_parameters": SECTIONS}, "model.language_model.embed_tokens", "lm_head"),
        ("Qwen3VL", {"rope_parameters": SECTIONS, "head_dim": 16}, "model.language_model.embed_tokens", "lm_head"),
        ("Gemma3", {}, "language_model.model.embed_tokens", "language_model.lm_head"),
        ("Gemma3", {}, "model.language_model.embed_tokens", "lm_head"),
    ],
)
def test_where_files_have_the_decoder_is_told_by_their_names(
    name: str, text: dict[str, object], embedding: str, head: str
) -> None:
    whole = {"architectures": [f"{name}ForConditionalGeneration"], "text_config": {**TEXT, **text}}
    whole |= {"tie_word_embeddings": True}
    config = from_hf(whole, {f"{embedding}.weight"})
    assert (config.layout.name(EMBEDDING), config.layout.name(HEAD)) == (f"{embedding}.weight", f"{head}.weight")
    assert config.tie_word_embeddings
    # Some files have a head all the same, which need not be the embedding then.
    assert not from_hf(whole, {f"{embedding}.weight", f"{head}.weight"}).tie_word_embeddings


def test_what_a_text_config_leaves_out_is_its_class_s_default() -> None:
    """As the published checkpoints of LLaVA 1.5 have it."""
    text = {"model_type": "llama", "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "vocab_size": 32064}
    config = from_hf({"architectures": ["LlavaForConditionalGeneration"], "text_config": text})
    assert (config.hidden_size, config.intermediate_size, config.num_layers) == (4096, 11008, 32)
    assert (config.num_kv_heads, config.vocab_size, config.tie_word_embeddings) == (32, 32064, False)
    mistral = from_hf({"architectures": ["LlavaForConditionalGeneration"], "text_config": {"model_type": "mistral"}})
    assert (mistral.num_kv_heads, {layer.window for layer in mistral.layers}) == (8, {4096})
    with pytest.raises(ModelLoadError, match="lacks hidden_size"):  # of a model that is a decoder alone
        from_hf({"architectures": ["LlamaForCausalLM"], **text})


@pytest.mark.parametrize("rope", [{"type": "mrope"}, {"type": "default", "rope_type": "default"}])
def test_older_descriptions_have_the_decoder_s_keys_beside_their_own(rope: dict[str, str]) -> None:
    """As the published checkpoints of Qwen2.5-VL have it."""
    flat = {**TEXT, "model_type": "qwen2_5_vl", "vision_config": {}, "rope_theta": 1e6, "use_sliding_window": False}
    config = from_hf({**flat, "rope_scaling": {**rope, "mrope_section": [2, 3, 3]}, "sliding_window": 64})
    assert config.ropes[0].axes == (0, 0, 1, 1, 1, 2, 2, 2)
    assert (config.axes, config.qkv_bias, config.num_layers) == (3, True, 2)
    nested = {**TEXT, "model_type": "qwen2_5_vl_text", "rope_parameters": {**SECTIONS, "rope_theta": 1e6}}
    assert config == from_hf({"architectures": ["Qwen2_5_VLForConditionalGeneration"], "text_config": nested})


def test_axes_of_frequencies() -> None:
    assert in_sections([1, 2, 3]) == (0, 1, 1, 2, 2, 2)
    assert interleaved([4, 2, 2]) == (0, 1, 2, 0, 1, 2, 0, 0)
    assert interleaved([0, 1, 3]) == (0, 1, 2, 0)  # no further than there are frequencies


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"text_config": {**TEXT, "model_type": "mamba"}}, r"a decoder of type mamba \(supported: qwen2_5_vl_text\)"),
        (
            {"text_config": {**TEXT, "rope_parameters": {"mrope_section": [2, 3, 4]}}},
            r"mrope_section=\[2, 3, 4\] for 8",
        ),
        ({"text_config": {**TEXT, "rope_parameters": {"mrope_section": [4, 4]}}}, r"mrope_section=\[4, 4\] for 8"),
        ({"text_config": TEXT}, r"mrope_section=\[16, 24, 24\] for 8 frequencies"),
    ],
)
def test_what_is_not_supported_is_named(change: dict[str, object], named: str) -> None:
    with pytest.raises(ModelLoadError, match=named):
        from_hf({"architectures": ["Qwen2_5_VLForConditionalGeneration"], **change})
