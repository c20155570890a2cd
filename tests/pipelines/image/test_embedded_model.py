"""The model that the project ships: what it draws, and that anybody's diffusers draws the same with it."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from models.files.catalog import EMBEDDED
from models.files.source import resolve
from pipelines.messages.image import ImageRequest
from scripts.training.emoji.evaluate import Painter
from tests.pipelines.image.driver import ImageDriver, worst

NAME = "tiny-emoji-diffusion"


@pytest.fixture(scope="module")
def folder() -> Path:
    return resolve(f"embedded:{NAME}")


@pytest.fixture(scope="module")
def driver(folder: Path) -> ImageDriver:
    return ImageDriver(folder)


def colour(picture: np.ndarray) -> tuple[float, float, float]:
    """The mean of what is not white."""
    drawn = picture[picture.min(axis=-1) < 200]
    assert len(drawn) > 300
    red, green, blue = drawn.mean(axis=0)
    return float(red), float(green), float(blue)


def test_it_is_small_and_says_what_it_is(folder: Path) -> None:
    assert EMBEDDED[NAME].default
    assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) <= 30_000_000
    card = (folder / "README.md").read_text()
    assert "Noto" in card
    assert "license: apache-2.0" in card


def test_it_draws_what_it_is_asked_for(driver: ImageDriver) -> None:
    red, _, blue = colour(driver.draw(ImageRequest(prompt="a strawberry", seed=1))[0])
    assert red > blue + 60
    red, green, _ = colour(driver.draw(ImageRequest(prompt="broccoli", seed=1))[0])
    assert green > red
    red, green, blue = colour(driver.draw(ImageRequest(prompt="blue heart", seed=1))[0])
    assert blue > red + 40


def test_seeds_give_other_pictures_and_the_same_seed_the_same(driver: ImageDriver) -> None:
    pictures = driver.draw(ImageRequest(prompt="a house", seed=3, n=3))
    assert pictures[0].shape == (64, 64, 3)
    assert len({hashlib.sha256(each.tobytes()).digest() for each in pictures}) == 3
    assert worst(driver.draw(ImageRequest(prompt="a house", seed=4))[0], pictures[1]) <= 1


def test_it_is_loaded_in_single_precision_unless_told_otherwise(folder: Path) -> None:
    """As the other parts are by diffusers: transformers goes by what the config says."""
    assert json.loads((folder / "text_encoder" / "config.json").read_text())["dtype"] == "float32"


def test_diffusers_own_pipeline_draws_the_same(driver: ImageDriver, folder: Path) -> None:
    theirs = Painter(folder).draw("a penguin", [5])[0]
    assert worst(driver.draw(ImageRequest(prompt="a penguin", seed=5))[0], theirs) <= 1
