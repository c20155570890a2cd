"""Pictures of emoji, as they are and varied: moved, scaled, turned, mirrored, in another colour, on a background."""

import colorsys
import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from scripts.training.emoji.concepts import COLOURS, Concept, caption

EDGE = 64  # pixels
Pixels = NDArray[np.uint8]  # [64, 64, 3]

RECOLOURED = 0.09
ON_BACKGROUND = 0.05
UNMIRRORED = frozenset({"8ball", "first_place_medal", "cd", "dvd", "musical_keyboard"})
LEAST_COLOURED = 0.25  # of its area: less has no colour that another could replace


@dataclass(frozen=True, slots=True)
class Sample:
    pixels: Pixels
    caption: str


def read_pictures(source: Path, style: str = "google") -> dict[str, Image.Image]:
    """RGBA pictures by short name from an unpacked `emoji-datasource-STYLE`. Raises OSError."""
    listed = json.loads((source / "emoji.json").read_text(encoding="utf-8"))
    folder = source / "img" / style / str(EDGE)
    return {
        entry["short_name"]: Image.open(folder / entry["image"]).convert("RGBA")
        for entry in listed
        if entry[f"has_img_{style}"] and entry["category"] not in ("Flags", "Component")
    }


class Variations:
    """Endless samples of one concept."""

    def __init__(self, concept: Concept, picture: Image.Image) -> None:
        self.concept = concept
        self._picture = picture
        self._hue = main_hue(picture)

    def draw(self, choose: random.Random) -> Sample:
        kind = choose.random()
        picture, colour, background = self._picture, "", ""
        if kind < RECOLOURED and self._hue is not None:
            colour = choose.choice(tuple(COLOURS))
            picture = rotate_hue(picture, COLOURS[colour] - self._hue)
        elif kind > 1 - ON_BACKGROUND:
            background = choose.choice(tuple(COLOURS))
        pixels = vary(picture, choose, mirror=self.concept.short_name not in UNMIRRORED, background=background)
        return Sample(pixels, caption(self.concept, choose, colour=colour, background=background))


def vary(picture: Image.Image, choose: random.Random, *, mirror: bool = True, background: str = "") -> Pixels:
    """Moved by up to 3 pixels, 0.86 to 1 times as large, turned by up to 7 degrees, on white or on a light colour."""
    if mirror and choose.random() < 0.5:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    scale, angle = choose.uniform(0.86, 1.0), math.radians(choose.gauss(0, 3.5))
    across, down = choose.uniform(-3, 3), choose.uniform(-3, 3)
    # The inverse map about the centre, as PIL takes it; premultiplied, so that no edge takes colour from what is clear.
    cos, sin, middle = math.cos(angle) / scale, math.sin(angle) / scale, EDGE / 2
    inverse = (
        cos, sin, middle - cos * (middle + across) - sin * (middle + down),
        -sin, cos, middle + sin * (middle + across) - cos * (middle + down),
    )  # fmt: skip
    moved = picture.convert("RGBa").transform(
        (EDGE, EDGE), Image.Transform.AFFINE, inverse, resample=Image.Resampling.BICUBIC
    )
    return compose(moved.convert("RGBA"), background)


def compose(picture: Image.Image, background: str = "") -> Pixels:
    colour = (255, 255, 255)
    if background:
        red, green, blue = colorsys.hsv_to_rgb(COLOURS[background] / 360, 0.45, 1.0)
        colour = (round(red * 255), round(green * 255), round(blue * 255))
    below = Image.new("RGBA", picture.size, (*colour, 255))
    return np.asarray(Image.alpha_composite(below, picture).convert("RGB"))


def to_signal(pixels: Sequence[Pixels]) -> NDArray[np.float32]:
    """[n, 3, 64, 64] in -1…1."""
    return np.stack(pixels).transpose(0, 3, 1, 2).astype(np.float32) / 127.5 - 1


def main_hue(picture: Image.Image) -> float | None:
    """Degrees; None where too little of it is coloured, or its colours are many."""
    rgba = np.asarray(picture).astype(np.float32) / 255
    solid = rgba[..., 3] > 0.5
    high, low = rgba[..., :3].max(-1), rgba[..., :3].min(-1)
    coloured = solid & (high - low > 0.3) & (high > 0.25)
    if coloured.sum() < LEAST_COLOURED * solid.sum():
        return None
    hues = np.asarray(picture.convert("RGB").convert("HSV"))[..., 0][coloured].astype(np.float32) / 256 * 2 * math.pi
    mean = complex(float(np.cos(hues).mean()), float(np.sin(hues).mean()))
    if abs(mean) < 0.7:
        return None
    return math.degrees(math.atan2(mean.imag, mean.real))


def rotate_hue(picture: Image.Image, degrees: float) -> Image.Image:
    hue, saturation, value = picture.convert("RGB").convert("HSV").split()
    turned = (np.asarray(hue).astype(np.int32) + round(degrees / 360 * 256)) % 256
    merged = Image.merge("HSV", (Image.fromarray(turned.astype(np.uint8)), saturation, value)).convert("RGB")
    merged.putalpha(picture.getchannel("A"))
    return merged
