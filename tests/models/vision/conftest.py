"""A tiny checkpoint of each family, and what reads it here and in transformers; made once."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from models.tokenizer.tokenizer import Tokenizer, load_tokenizer
from models.vision.image import ImageProcessor, Tower
from models.vision.loading import load_vision
from models.vision.vision import Vision
from tests import vision_models


@dataclass(frozen=True)
class Seen:
    family: str
    folder: Path
    tokenizer: Tokenizer
    vision: Vision
    processor: ImageProcessor
    tower: Tower
    their_processor: Any  # transformers' own, of text and pictures
    their_model: Any


@pytest.fixture(scope="session")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Seen]:
    @cache
    def load(family: str) -> Seen:
        folder = vision_models.build(family, tmp_path_factory.mktemp(family))
        tokenizer = load_tokenizer(folder)
        vision = load_vision(folder, vision_models.HIDDEN, tokenizer, device="cpu", dtype="float32")
        assert vision is not None
        return Seen(
            family,
            folder,
            tokenizer,
            vision,
            vision.load_processor(),
            vision.load_tower(),
            vision_models.processor(family, folder),
            vision_models.reference(family, folder).model,
        )

    return load


@pytest.fixture(params=vision_models.FAMILIES)
def one(request: pytest.FixtureRequest, seen: Callable[[str], Seen]) -> Seen:
    """Of each family."""
    return seen(request.param)
