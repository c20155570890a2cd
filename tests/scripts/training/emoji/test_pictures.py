import random

import numpy as np
from PIL import Image, ImageDraw

from scripts.training.emoji.concepts import Concept
from scripts.training.emoji.pictures import EDGE, Variations, compose, to_signal, vary


def ball(colour: str) -> Image.Image:
    picture = Image.new("RGBA", (EDGE, EDGE), (0, 0, 0, 0))
    ImageDraw.Draw(picture).ellipse((12, 12, 52, 52), fill=colour)
    return picture


def test_what_is_clear_becomes_white_or_the_background() -> None:
    assert tuple(compose(ball("red"))[0, 0]) == (255, 255, 255)
    red, green, blue = compose(ball("red"), "blue")[0, 0]
    assert blue > green > red


def test_variations_differ_and_keep_white_edges_white() -> None:
    choose = random.Random(0)
    drawn = [vary(ball("red"), choose) for _ in range(8)]
    assert len({each.tobytes() for each in drawn}) == 8
    for each in drawn:
        assert each.shape == (EDGE, EDGE, 3)
        assert each[0].min() == 255
        assert tuple(each[32, 32]) == (254, 0, 0) or tuple(each[32, 32]) == (255, 0, 0)
        # Clear pixels are black underneath: none of it may darken the rim.
        assert each[..., 0].min() >= 250


def test_the_same_choices_draw_the_same() -> None:
    concept = Concept("ball", ("ball",))
    first = Variations(concept, ball("red")).draw(random.Random(4))
    again = Variations(concept, ball("red")).draw(random.Random(4))
    assert first.caption == again.caption
    assert np.array_equal(first.pixels, again.pixels)


def test_a_recoloured_picture_has_the_colour_that_its_caption_says() -> None:
    choose = random.Random(0)
    variations = Variations(Concept("ball", ("ball",)), ball("red"))
    seen = 0
    for sample in (variations.draw(choose) for _ in range(300)):
        if "blue ball" in sample.caption:
            red, _, blue = sample.pixels[32, 32].astype(int)
            assert blue > red + 100, sample.caption
            seen += 1
    assert seen


def test_what_has_no_colour_is_not_recoloured() -> None:
    choose = random.Random(0)
    variations = Variations(Concept("ball", ("ball",)), ball("gray"))
    captions = [variations.draw(choose).caption for _ in range(200)]
    assert not any("blue ball" in caption for caption in captions)


def test_signals_are_between_minus_one_and_one() -> None:
    signal = to_signal([compose(ball("red"))])
    assert signal.shape == (1, 3, EDGE, EDGE)
    assert signal.min() == -1.0
    assert signal.max() == 1.0
