"""Which files a model sees by, and which are refused."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from models.decoder.loading import load_decoder
from models.errors import ModelLoadError
from models.tokenizer.tokenizer import load_tokenizer
from models.vision.loading import load_vision
from models.vision.vision import Vision
from tests.models.checkpoints import llama, write
from tests.models.vision.conftest import Seen
from tests.vision_models import FAMILIES, HIDDEN, picture, save_tokenizer

Edit = Callable[[dict[str, Any]], object]


def load(folder: Path, **options: Any) -> Vision | None:
    return load_vision(folder, HIDDEN, load_tokenizer(folder), **{"device": "cpu", "dtype": "float32", **options})


@pytest.fixture
def edited(seen: Callable[[str], Seen], tmp_path: Path) -> Callable[..., Path]:
    """A copy of a family's folder, with other weights, or another config."""

    def edit(
        family: str, *, weights: Edit | None = None, config: Edit | None = None, settings: Edit | None = None
    ) -> Path:
        folder = tmp_path / "edited"
        shutil.copytree(seen(family).folder, folder)
        if weights:
            tensors = load_file(folder / "model.safetensors")
            weights(tensors)
            save_file(tensors, folder / "model.safetensors")
        for file, change in (("config.json", config), ("preprocessor_config.json", settings)):
            if change:
                content = json.loads((folder / file).read_text())
                change(content)
                write(folder / file, content)
        return folder

    return edit


def of_vision(tensors: Mapping[str, torch.Tensor]) -> list[str]:
    parts = ("vision_model", "connector", "vision_tower", "multi_modal_projector", "image_newline", "visual")
    return [name for name in tensors if any(part in name for part in parts)]


# Names of the hub's older files -> those of transformers 5, without the class's own prefix.
NEWER = {"vision_tower.vision_model.": "vision_tower."}


@pytest.mark.parametrize("begin", ["", "model."])
@pytest.mark.parametrize("newer", [False, True])
def test_older_and_newer_names_of_weights_are_read(one: Seen, edited: Any, begin: str, newer: bool) -> None:
    def rename(tensors: dict[str, torch.Tensor]) -> None:
        for name in of_vision(tensors):
            tensor = tensors.pop(name)
            name = name.removeprefix("model.")
            if "vision_tower." in name:
                name = name.replace("vision_tower.vision_model.", "vision_tower.")
                name = name if newer else name.replace("vision_tower.", "vision_tower.vision_model.")
            tensors[f"{begin}{name}"] = tensor

    vision = load(edited(one.family, weights=rename))
    assert vision is not None
    image = one.processor.prepare(picture(50, 30), "auto")
    [found], [expected] = vision.load_tower().encode([image]), one.tower.encode([image])
    assert np.array_equal(found.rows, expected.rows)


def test_a_missing_weight_is_named(one: Seen, edited: Any) -> None:
    gone: list[str] = []

    def lose(tensors: dict[str, torch.Tensor]) -> None:
        gone.append(of_vision(tensors)[-1])
        tensors.pop(gone[0])

    vision = load(edited(one.family, weights=lose))
    assert vision is not None
    with pytest.raises(ModelLoadError, match=f"lacks the tensor .*{gone[0].rpartition('.')[0].rpartition('.')[2]}"):
        vision.load_tower()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensor: torch.zeros(3, 5), r"has the shape \(3, 5\), not"),
        (lambda tensor: torch.full_like(tensor, torch.nan), "has values that are not finite"),
        (lambda tensor: tensor.to(torch.int8), "is of int8"),
    ],
)
def test_a_weight_that_can_be_none_is_named(
    edited: Any, change: Callable[[torch.Tensor], torch.Tensor], message: str
) -> None:
    def replace(tensors: dict[str, torch.Tensor]) -> None:
        name = next(name for name in tensors if "connector" in name)
        tensors[name] = change(tensors[name])

    vision = load(edited("idefics3", weights=replace))
    assert vision is not None
    with pytest.raises(ModelLoadError, match=f"connector.modality_projection.proj.weight {message}"):
        vision.load_tower()


@pytest.mark.parametrize(
    ("family", "config", "settings", "message"),
    [
        ("idefics3", {"image_token_id": 5}, {}, "image_token_id is 5, no special token"),
        ("idefics3", {"image_token_id": "x"}, {}, "image_token_id"),
        ("idefics3", {"vision_config": None}, {}, "lacks vision_config"),
        ("idefics3", {}, {"max_image_size": {"longest_edge": 1}}, "tiles of 1 pixels"),
        ("idefics3", {"text_config": {"hidden_size": 48}}, {}, "48 wide, where the language model has 64"),
        ("idefics3", {"fake_image_token_id": 262, "global_image_token_id": 263}, {}, "without tiles"),
        ("llava", {"vision_config": {"model_type": "pixtral"}}, {}, "pixtral is not supported"),
        ("llava_onevision", {"vision_feature_select_strategy": "default"}, {}, "vision_feature_select_strategy"),
        (
            "llava_onevision",
            {"image_grid_pinpoints": [[32, 33]]},
            {"image_grid_pinpoints": [[32, 33]]},
            "multiples of 32",
        ),
        ("llava_onevision", {}, {"image_grid_pinpoints": [[32, 32]]}, "other than those of the image processor"),
        ("qwen3-vl", {}, {"patch_size": 14}, "patch_size is 14, where the tower's patch_size is 8"),
        ("gemma3", {}, {"do_pan_and_scan": True}, "do_pan_and_scan"),
        ("gemma3", {"vision_config": {"num_hidden_layers": 1 << 40}}, {}, "num_hidden_layers"),
    ],
)
def test_what_is_not_supported_is_refused_before_anything_is_loaded(
    edited: Any, family: str, config: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    folder = edited(
        family, config=lambda values: values.update(config), settings=lambda values: values.update(settings)
    )
    with pytest.raises(ModelLoadError, match=message):
        load(folder)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"image_processor_type": "ViTImageProcessor"}, "ViTImageProcessor is not supported"),
        ({"image_std": [0.5]}, "no picture can be prepared"),
        ({"pad_to_square": [1, 2, 300]}, "three integers"),
        ({"size": {"height": 8, "width": 8, "longest_edge": 3}}, "no picture can be prepared"),
    ],
)
def test_settings_by_which_no_picture_can_be_prepared_are_refused(edited: Any, settings: Any, message: str) -> None:
    vision = load(edited("gemma3", settings=lambda values: values.update(settings)))
    assert vision is not None
    with pytest.raises(ModelLoadError, match=message):
        vision.load_processor()


def test_settings_make_another_identity(edited: Any, seen: Callable[[str], Seen]) -> None:
    vision = load(edited("gemma3", settings=lambda values: values.update(image_mean=[0.1, 0.2, 0.3])))
    assert vision is not None
    rgb = picture(20, 20)
    identities = {each.prepare(rgb, "auto").identity for each in (vision.load_processor(), seen("gemma3").processor)}
    assert len(identities) == 2


def test_a_language_half_alone_sees_nothing(edited: Any) -> None:
    """Files of it have the config of both."""

    def lose(tensors: dict[str, torch.Tensor]) -> None:
        for name in of_vision(tensors):
            tensors.pop(name)

    assert load(edited("gemma3", weights=lose)) is None


def test_what_is_no_folder_of_a_model_that_sees_has_no_vision(tmp_path: Path) -> None:
    folder = llama(tmp_path)
    assert load(folder) is None
    assert load_decoder(folder, device="cpu", dtype="float32").vision is None
    with pytest.raises(ModelLoadError, match="nothing that the model could see with"):
        load_decoder(folder, device="cpu", dtype="float32", vision=folder)


def test_settings_that_are_in_the_processor_s_file_are_found(edited: Any, seen: Callable[[str], Seen]) -> None:
    folder = edited("llava")
    settings = folder / "preprocessor_config.json"
    write(folder / "processor_config.json", {"image_processor": json.loads(settings.read_text())})
    settings.unlink()
    vision = load(folder)
    assert vision is not None
    rgb = picture(20, 30)
    assert vision.load_processor().prepare(rgb, "auto").tokens == seen("llava").processor.prepare(rgb, "auto").tokens


@pytest.mark.parametrize("name", ["chat_template.jinja", "chat_template.json"])
def test_the_template_that_knows_of_pictures_is_found(edited: Any, name: str) -> None:
    folder = edited("llava")
    (folder / "chat_template.jinja").unlink()
    template = "{{ 'x' }}"
    (folder / name).write_text(json.dumps({"chat_template": template}) if name.endswith("json") else template)
    vision = load(folder)
    assert vision is not None
    assert vision.chat_template == template


# --- the half that sees in a folder of its own ------------------------------------------------------------------------


@pytest.fixture
def halves(seen: Callable[[str], Seen], tmp_path: Path) -> tuple[Path, Path]:
    """A language model of its own vocabulary, where three tokens are left over, and a folder with the rest."""
    language = tmp_path / "language"
    llama(language)
    tokenizer = save_tokenizer(language, ("<left_1>", "<left_2>", "<left_3>"))
    folder = tmp_path / "sees"
    shutil.copytree(seen("idefics3").folder, folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    tensors = load_file(folder / "model.safetensors")
    save_file({name: tensors[name] for name in of_vision(tensors)}, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    keys = ("image_token_id", "fake_image_token_id", "global_image_token_id")
    ids = {key: tokenizer.token_to_id(f"<left_{index}>") for index, key in enumerate(keys, 1)}
    config |= ids | {"text_config": {"model_type": "llama", "hidden_size": HIDDEN}}
    write(folder / "config.json", config)
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    write(
        folder / "preprocessor_config.json", settings | {"do_image_splitting": False, "pad_to_square": [255, 255, 255]}
    )
    (folder / "chat_template.jinja").write_text("<left_1>")
    return language, folder


def test_a_half_that_sees_goes_with_another_s_language_model(
    halves: tuple[Path, Path], seen: Callable[[str], Seen]
) -> None:
    language, folder = halves
    vision = load_vision(folder, HIDDEN, load_tokenizer(language), device="cpu", dtype="float32")
    assert vision is not None
    assert vision.chat_template == "<left_1>"
    tokenizer = load_tokenizer(language)
    image, fake, whole = (tokenizer.encode(f"<left_{n}>", add_special=False)[0] for n in (1, 2, 3))
    rgb = picture(60, 20)
    prepared = vision.load_processor().prepare(rgb, "auto")
    assert prepared.tokens == (fake, whole, image, image, image, image, fake)
    assert prepared.rows.tolist() == [2, 3, 4, 5]
    assert vision.placeholder == image
    bars = np.full((60, 60, 3), 255, np.uint8)
    bars[20:40] = rgb
    square = seen("idefics3").processor.prepare(bars, "low")
    assert np.array_equal(prepared.inputs["pixel_values"], square.inputs["pixel_values"])
    [found], [expected] = vision.load_tower().encode([prepared]), seen("idefics3").tower.encode([square])
    assert np.array_equal(found.rows, expected.rows)


def test_a_half_that_sees_has_to_have_the_language_model_s_width(halves: tuple[Path, Path]) -> None:
    language, folder = halves
    with pytest.raises(ModelLoadError, match="64 wide, where the language model has 48"):
        load_vision(folder, 48, load_tokenizer(language))


def test_its_tokens_have_to_be_special_ones_of_the_language_model(halves: tuple[Path, Path]) -> None:
    language, folder = halves
    save_tokenizer(language, ("<left_1>", "<left_2>"))
    with pytest.raises(ModelLoadError, match=r"global_image_token_id is 26\d, no special token"):
        load_vision(folder, HIDDEN, load_tokenizer(language))


def test_load_decoder_gives_what_its_files_see_with(halves: tuple[Path, Path], seen: Callable[[str], Seen]) -> None:
    language, folder = halves
    loaded = load_decoder(language, device="cpu", dtype="float32", vision=folder)
    assert loaded.vision is not None
    assert loaded.vision.family == "idefics3"
    whole = load_decoder(seen("gemma3").folder, device="cpu", dtype="float32")
    assert whole.vision is not None
    assert whole.vision.bidirectional
    assert FAMILIES.keys() >= {loaded.vision.family, whole.vision.family}
