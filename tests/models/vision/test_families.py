"""Pictures of several sizes, as transformers' own processors and models read them."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from models.vision import tower_loading
from models.vision.folder import read_folder
from models.vision.half import Half
from models.vision.image import PreparedImage
from models.vision.tower_loading import load_tower
from models.vision.vision import PlacedImage
from tests.models.vision.conftest import Seen
from tests.vision_models import FAMILIES, HIDDEN, picture

SIZES = ((40, 40), (100, 37), (31, 90))
QWEN = ("qwen2.5-vl", "qwen3-vl")


def pictures() -> list[NDArray[np.uint8]]:
    return [picture(*size, seed=index) for index, size in enumerate(SIZES)]


def theirs(one: Seen, text: str, images: Sequence[NDArray[np.uint8]]) -> Any:
    return one.their_processor(text=text, images=[Image.fromarray(each) for each in images], return_tensors="pt")


def features(one: Seen, inputs: Any) -> Any:
    """What the whole model's tower gives, for each picture [n, hidden]."""
    names = ("pixel_values", "pixel_attention_mask", "image_sizes", "image_grid_thw")
    with torch.inference_mode():
        return one.their_model.get_image_features(**{name: inputs[name] for name in names if name in inputs})


def expanded(one: Seen, text: str, images: Sequence[PreparedImage]) -> tuple[list[int], list[PlacedImage]]:
    """A prompt's ids with the pictures' tokens for placeholders."""
    spelled = FAMILIES[one.family].placeholder
    before, behind = one.vision.around
    ids: list[int] = []
    placed = []
    rest = iter(images)
    for id in one.tokenizer.encode(text.replace(spelled, f"{before}{spelled}{behind}"), add_special=False):
        if id == one.vision.placeholder:
            placed.append(PlacedImage(len(ids), next(rest)))
            ids += placed[-1].image.tokens
        else:
            ids.append(id)
    return ids, placed


def half(one: Seen) -> Half:
    found = read_folder(one.folder)
    assert found is not None
    return found


def prompt(one: Seen) -> str:
    """Three pictures: behind a line's end, between words, one behind the other."""
    image = FAMILIES[one.family].picture
    return f"user\n{image}What is {image}{image}\nhere?"


def test_a_prompt_with_pictures_has_the_tokens_that_transformers_has(one: Seen) -> None:
    images = [one.processor.prepare(each, "auto") for each in pictures()]
    ids, _ = expanded(one, prompt(one), images)
    assert ids == theirs(one, prompt(one), pictures())["input_ids"][0].tolist()
    for image in images:
        assert len(image.rows)
        assert np.all(np.diff(image.rows) > 0)


@pytest.mark.parametrize("size", SIZES)
def test_rows_are_those_of_the_whole_model(one: Seen, size: tuple[int, int]) -> None:
    rgb = picture(*size, seed=7)
    image = one.processor.prepare(rgb, "auto")
    [encoded] = one.tower.encode([image])
    expected = features(one, theirs(one, FAMILIES[one.family].picture, [rgb]))
    rows = torch.cat(list(expected.pooler_output)).numpy()
    assert encoded.rows.dtype == np.float32
    np.testing.assert_allclose(encoded.rows, rows, atol=1e-5, rtol=1e-5)
    if one.family == "qwen3-vl":
        assert encoded.deepstack is not None
        for layer, features_of_layer in zip(encoded.deepstack, expected.deepstack_features, strict=True):
            np.testing.assert_allclose(layer, features_of_layer[0].numpy(), atol=1e-5, rtol=1e-5)
        assert encoded.nbytes == encoded.rows.nbytes * 3
    else:
        assert encoded.deepstack is None


def test_rows_are_the_same_bits_alone_and_in_company(one: Seen) -> None:
    images = [one.processor.prepare(each, "auto") for each in pictures()]
    together = one.tower.encode(images)
    for image, encoded in zip(images, together, strict=True):
        [alone] = one.tower.encode([image])
        assert np.array_equal(alone.rows, encoded.rows)
    assert not np.array_equal(together[0].rows[:2], together[1].rows[:2])


def test_rows_of_pictures_that_are_encoded_together_are_those_of_each(one: Seen) -> None:
    """As on a GPU: of three pictures two have the same shape, or all go as one sequence."""
    tower = load_tower(half(one), HIDDEN, device="cpu", dtype="float32", together=True)
    images = [one.processor.prepare(each, "auto") for each in (*pictures(), picture(*SIZES[0], seed=9))]
    for image, encoded in zip(images, tower.encode(images), strict=True):
        [alone] = one.tower.encode([image])
        np.testing.assert_allclose(encoded.rows, alone.rows, atol=1e-5, rtol=1e-5)
        if alone.deepstack is not None:
            assert encoded.deepstack is not None
            np.testing.assert_allclose(encoded.deepstack, alone.deepstack, atol=1e-5, rtol=1e-5)
    tower.encode([one.processor.prepare(picture(50, 20), "low") for _ in range(3)])


def test_low_detail_is_less_where_there_is_less(one: Seen) -> None:
    """The whole picture without its tiles, or fewer pixels of it; where there is one size, that."""
    rgb = picture(700, 900)
    auto, low, high = (one.processor.prepare(rgb, detail) for detail in ("auto", "low", "high"))
    assert (auto.tokens, auto.identity) == (high.tokens, high.identity)
    [encoded] = one.tower.encode([low])
    assert len(encoded.rows) == len(low.rows)
    if one.family in ("idefics3", "smolvlm", "llava_onevision"):
        assert low.pixels == 32 * 32 < auto.pixels
        assert low.identity != auto.identity
        assert len(low.tokens) < len(auto.tokens)
    elif one.family not in QWEN:  # their pictures have no more pixels here than those of low detail
        assert (low.tokens, low.identity) == (auto.tokens, auto.identity)


def test_onevision_gives_low_detail_the_form_of_one_of_several_pictures(seen: Any) -> None:
    one = seen("llava_onevision")
    rgb = picture(50, 80)
    low = one.processor.prepare(rgb, "low")
    [encoded] = one.tower.encode([low])
    several = [Image.fromarray(rgb), Image.fromarray(picture(30, 30))]
    inputs = one.their_processor.image_processor([several], return_tensors="pt")
    with torch.inference_mode():
        expected = one.their_model.get_image_features(**inputs).pooler_output[0]
    np.testing.assert_allclose(encoded.rows, expected.numpy(), atol=1e-5, rtol=1e-5)


def test_an_identity_is_of_every_pixel_and_of_the_shape(one: Seen) -> None:
    rgb = picture(40, 20)
    other = rgb.copy()
    other[7, 3, 1] ^= 1
    shapes = [rgb, other, rgb.reshape(40, 20, 3)]
    found = [one.processor.prepare(each, "auto").identity for each in (*shapes, rgb)]
    assert len(set(found)) == 3
    assert found[0] == found[3]
    assert {len(each) for each in found} == {16}


def test_a_picture_may_be_read_only_and_stays_as_it_is(one: Seen) -> None:
    rgb = picture(33, 47)
    rgb.setflags(write=False)
    before = rgb.copy()
    one.processor.prepare(rgb, "auto")
    assert np.array_equal(rgb, before)


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (3, 200), (200, 1)])
def test_small_and_narrow_pictures_are_read(one: Seen, size: tuple[int, int]) -> None:
    image = one.processor.prepare(picture(*size), "auto")
    [encoded] = one.tower.encode([image])
    assert len(encoded.rows) == len(image.rows)
    assert np.isfinite(encoded.rows).all()


def test_a_picture_that_is_much_too_narrow_is_refused(one: Seen) -> None:
    with pytest.raises(ValueError, match="1 x 201 pixels"):
        one.processor.prepare(picture(1, 201), "auto")


def test_any_number_of_threads_prepare_pictures_at_once(one: Seen) -> None:
    images = [picture(30 + 7 * index, 60 - 3 * index, seed=index) for index in range(8)] * 3
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda rgb: one.processor.prepare(rgb, "auto"), images))
    for rgb, image in zip(images, found, strict=True):
        alone = one.processor.prepare(rgb, "auto")
        assert (image.tokens, image.identity) == (alone.tokens, alone.identity)
        assert all(np.array_equal(image.inputs[name], alone.inputs[name]) for name in alone.inputs)


def test_a_tower_in_bfloat16_gives_about_the_same(one: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tower_loading, "multiplies_bf16", lambda: True)
    tower = load_tower(half(one), HIDDEN, device="cpu", dtype="bfloat16")
    image = one.processor.prepare(picture(50, 40), "auto")
    [found], [expected] = tower.encode([image]), one.tower.encode([image])
    assert found.rows.dtype == np.float32
    cosines = (found.rows * expected.rows).sum() / (np.linalg.norm(found.rows) * np.linalg.norm(expected.rows))
    assert cosines > 0.999


def test_a_processor_without_products_in_bfloat16_has_the_tower_in_float32(
    seen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tower_loading, "multiplies_bf16", lambda: False)
    one = seen("llava")
    tower = load_tower(half(one), HIDDEN, device="cpu", dtype="bfloat16")
    image = one.processor.prepare(picture(50, 40), "auto")
    [found], [expected] = tower.encode([image]), one.tower.encode([image])
    assert np.array_equal(found.rows, expected.rows)


def test_tiles_of_zeros_keep_their_rows(seen: Any) -> None:
    one = seen("idefics3")
    image = one.processor.prepare(picture(90, 90), "auto")
    image.inputs["pixel_values"][0, 1] = 0
    [encoded] = one.tower.encode([image])
    assert len(encoded.rows) == len(image.rows)


@pytest.mark.parametrize("family", QWEN)
def test_positions_are_those_of_transformers(seen: Any, family: str) -> None:
    one = seen(family)
    images = [one.processor.prepare(each, "auto") for each in pictures()]
    ids, placed = expanded(one, prompt(one), images)
    inputs = theirs(one, prompt(one), pictures())
    assert ids == inputs["input_ids"][0].tolist()
    expected, delta = one.their_model.get_rope_index(
        inputs["input_ids"], inputs["mm_token_type_ids"], image_grid_thw=inputs["image_grid_thw"]
    )
    found = one.vision.positions(ids, placed)
    np.testing.assert_array_equal(found[0], expected[:, 0].numpy())
    assert found[1] == int(delta[0])


@pytest.mark.parametrize("family", QWEN)
def test_positions_of_text_alone_count_its_tokens(seen: Any, family: str) -> None:
    positions, delta = seen(family).vision.positions([5, 6, 7], [])
    assert positions.tolist() == [[0, 1, 2]] * 3
    assert delta == 0
