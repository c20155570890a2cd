import random

import numpy as np
import pytest
from PIL import Image, ImageDraw

from scripts.training.emoji.concepts import COLOURS
from scripts.training.vision.scenes import Drawing, Scenes, recolourings
from scripts.training.vision.things import Thing


def disc(colour: str) -> Image.Image:
    picture = Image.new("RGBA", (64, 64), (0, 0, 0, 0))
    ImageDraw.Draw(picture).ellipse((6, 6, 58, 58), fill=colour)
    return picture


BALL, BOX, DOT = (Thing(name, (name,), "object", core=name != "dot") for name in ("ball", "box", "dot"))
DRAWINGS = [Drawing.of([disc(colour), disc(colour)]) for colour in ("red", "blue", "gray")]


@pytest.fixture
def scenes() -> Scenes:
    return Scenes([BALL, BOX, DOT], DRAWINGS, core=0.5)


def test_the_same_choices_draw_the_same(scenes: Scenes) -> None:
    first, again = (scenes.draw(random.Random(3)) for _ in range(2))
    assert first[0] == again[0]
    assert np.array_equal(first[1], again[1])


def test_a_recoloured_thing_has_the_colour_that_is_said(scenes: Scenes) -> None:
    choose = random.Random(0)
    for scene, pixels in (scenes.draw(choose, "recolour") for _ in range(40)):
        if scene.colour == "blue":
            red, _, blue = pixels[32, 32].astype(int)
            assert blue > red + 80


def test_the_colour_kept_for_the_evaluation_is_never_drawn_in_training(scenes: Scenes) -> None:
    choose = random.Random(0)
    for split in ("train", "held"):
        scenes_drawn = [scenes.draw(choose, "recolour", split=split)[0] for _ in range(60)]
        drawn = {(scene.things[0], scene.colour) for scene in scenes_drawn if scene.kind == "recolour"}
        legal = {(at, colour) for at in (0, 1) for colour in recolourings(scenes.things[at], split)}
        assert drawn <= legal
    assert {*recolourings(BALL, "train"), *recolourings(BALL, "held")} == set(COLOURS)
    assert not {*recolourings(BALL, "train")} & {*recolourings(BALL, "held")}


def test_so_many_are_drawn(scenes: Scenes) -> None:
    """Seen by the parts that are not background and not connected, along rows and columns of places."""
    choose = random.Random(1)
    seen = set()
    for scene, pixels in (scenes.draw(choose, "count") for _ in range(40)):
        dark = (pixels.min(axis=2) < 128).astype(int)
        if scene.count == 2:
            halves = dark[:, :32].sum(), dark[:, 32:].sum(), dark[:32].sum(), dark[32:].sum()
            assert min(halves[:2]) > 50 or min(halves[2:]) > 50
        seen.add(scene.count)
        assert len(scene.things) == 1
    assert seen == {2, 3, 4, 5}


def test_a_pair_is_two_things(scenes: Scenes) -> None:
    choose = random.Random(2)
    for scene, _ in (scenes.draw(choose, "pair") for _ in range(20)):
        assert len(set(scene.things)) == 2


def test_a_background_is_what_is_said(scenes: Scenes) -> None:
    choose = random.Random(4)
    for scene, pixels in (scenes.draw(choose, "background") for _ in range(40)):
        red, green, blue = pixels[0, 0].astype(int)
        if scene.background == "green":
            assert green > max(red, blue)


def test_colours_that_everybody_would_name() -> None:
    assert Drawing.of([disc("red")]).colour(0) == "red"
    assert Drawing.of([disc("saddlebrown")]).colour(0) == "brown"
    assert Drawing.of([disc("gray")]).colour(0) == ""
    spotted = disc("white")
    ImageDraw.Draw(spotted).ellipse((26, 26, 38, 38), fill="red")
    assert Drawing.of([spotted]).colour(0) == ""
