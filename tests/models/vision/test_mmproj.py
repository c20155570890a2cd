"""GGUF files of the half that sees."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file

from models.errors import ModelLoadError
from models.vision.loading import load_vision
from tests.models.conftest import write_gguf
from tests.models.vision.conftest import Seen
from tests.vision_models import HIDDEN, picture

METADATA = {
    "clip.has_vision_encoder": True,
    "clip.projector_type": "idefics3",
    "clip.use_gelu": True,
    "clip.vision.projection_dim": HIDDEN,
    "clip.vision.image_size": 32,
    "clip.vision.preproc_image_size": 96,
    "clip.vision.patch_size": 8,
    "clip.vision.embedding_length": 32,
    "clip.vision.feed_forward_length": 64,
    "clip.vision.block_count": 2,
    "clip.vision.attention.head_count": 2,
    "clip.vision.attention.layer_norm_epsilon": 1e-6,
    "clip.vision.projector.scale_factor": 2,
    "clip.vision.image_mean": [0.5, 0.4, 0.6],
    "clip.vision.image_std": [0.3, 0.25, 0.35],
}
Write = Callable[..., Path]


@pytest.fixture
def mmproj(seen: Callable[[str], Seen], tmp_path: Path) -> Write:
    """A file as llama.cpp's converter writes it, from the tiny Idefics 3."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 2)
    stored = {
        named: tensor
        for name, tensor in load_file(seen("idefics3").folder / "model.safetensors").items()
        if (named := names.get_name(name, try_suffixes=(".weight", ".bias"))) and named.startswith(("v.", "mm."))
    }

    def write(*, architecture: str = "clip", without: str = "", **metadata: Any) -> Path:
        keys = METADATA | {f"clip.{key}": value for key, value in metadata.items()}
        kept = {name: tensor for name, tensor in stored.items() if name != without}
        large = {name: (tensor, gguf.GGMLQuantizationType.F16) for name, tensor in kept.items() if "attn_q.w" in name}
        plain = {name: tensor for name, tensor in kept.items() if name not in large}
        return write_gguf(tmp_path / "mmproj.gguf", architecture, metadata=keys, tensors=plain, quantised=large)

    return write


def test_a_file_of_the_half_that_sees_gives_what_the_folder_gives(mmproj: Write, seen: Callable[[str], Seen]) -> None:
    one = seen("idefics3")
    vision = load_vision(mmproj(), HIDDEN, one.tokenizer, device="cpu", dtype="float32")
    assert vision is not None
    assert vision.placeholder == one.vision.placeholder
    rgb = picture(90, 40)
    found, expected = vision.load_processor().prepare(rgb, "auto"), one.processor.prepare(rgb, "auto")
    assert found.tokens == expected.tokens
    np.testing.assert_allclose(found.inputs["pixel_values"], expected.inputs["pixel_values"], atol=1e-6)
    [rows], [theirs] = vision.load_tower().encode([found]), one.tower.encode([expected])
    np.testing.assert_allclose(rows.rows, theirs.rows, atol=0.02)  # of weights in float16


def test_another_gguf_file_sees_nothing(mmproj: Write, seen: Callable[[str], Seen]) -> None:
    assert load_vision(mmproj(architecture="llama"), HIDDEN, seen("idefics3").tokenizer) is None


def test_a_projector_that_is_not_supported_is_refused_by_its_name(mmproj: Write, seen: Callable[[str], Seen]) -> None:
    with pytest.raises(ModelLoadError, match="projector of the type mlp is not supported"):
        load_vision(mmproj(projector_type="mlp"), HIDDEN, seen("idefics3").tokenizer)


def test_a_language_model_of_another_width_is_refused(mmproj: Write, seen: Callable[[str], Seen]) -> None:
    with pytest.raises(ModelLoadError, match="64 wide, where the language model has 32"):
        load_vision(mmproj(), 32, seen("idefics3").tokenizer)


def test_a_vocabulary_without_the_image_token_is_refused(mmproj: Write, seen: Callable[[str], Seen]) -> None:
    with pytest.raises(ModelLoadError, match="no <image>"):
        load_vision(mmproj(), HIDDEN, seen("gemma3").tokenizer)


def test_a_missing_tensor_is_named(mmproj: Write, seen: Callable[[str], Seen]) -> None:
    vision = load_vision(mmproj(without="mm.model.fc.weight"), HIDDEN, seen("idefics3").tokenizer, dtype="float32")
    assert vision is not None
    with pytest.raises(ModelLoadError, match=r"lacks the tensor model\.connector.modality_projection.proj.weight"):
        vision.load_tower()
