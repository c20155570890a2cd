"""Pictures to ask about: one thing as it is, recoloured or on a colour, two things, or several of one."""

import colorsys
import math
import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from scripts.training.emoji.concepts import COLOURS
from scripts.training.emoji.pictures import UNMIRRORED, Pixels, main_hue, rotate_hue
from scripts.training.vision import EDGE
from scripts.training.vision.things import Thing

Kind = Literal["plain", "background", "recolour", "pair", "count"]
SHARES: dict[Kind, float] = {"plain": 0.42, "background": 0.13, "recolour": 0.25, "pair": 0.12, "count": 0.08}
CORE = 0.7  # of the scenes show things of the core alone
MOST = 5  # of one thing
TINT = 0.15  # of the scenes on white are on something that is nearly white
NEAR = 18  # degrees of hue between what a thing has and a colour that it may be said to have
OF_ONE_COLOUR = 0.6  # of a thing's area, where its colour can be asked for
BROWN = 0.62  # brightness of orange below which it is called brown
SPREAD = {2: (2, 1), 3: (3, 1), 4: (2, 2), 5: (3, 2)}  # columns, rows of places for so many
Split = Literal["train", "held", "all"]  # which recolourings: each thing has one colour that is never trained on


@dataclass(frozen=True, slots=True)
class Scene:
    kind: Kind
    things: tuple[int, ...]  # indices; two of a pair
    style: int
    colour: str  # of the thing, where one can be told
    background: str  # "white", or a colour
    count: int


@dataclass(frozen=True, slots=True)
class Drawing:
    """A thing's pictures in each style, and the hue that most of each has."""

    pictures: tuple[Image.Image, ...]
    hues: tuple[float | None, ...]

    @classmethod
    def of(cls, pictures: Sequence[Image.Image]) -> "Drawing":
        return cls(tuple(pictures), tuple(main_hue(picture) for picture in pictures))

    def colour(self, style: int) -> str:
        """The one that everybody would name; empty: there is none."""
        hue = self.hues[style]
        if hue is None or _share(self.pictures[style], hue) < OF_ONE_COLOUR:
            return ""
        name = min(COLOURS, key=lambda each: _turn(hue, COLOURS[each]))
        if _turn(hue, COLOURS[name]) > NEAR:
            return ""
        if name in ("orange", "red", "yellow") and _brightness(self.pictures[style]) < BROWN:
            return "brown" if name == "orange" else ""
        return name


class Scenes:
    """Endless scenes. The same `choose` gives the same ones."""

    def __init__(self, things: Sequence[Thing], drawings: Sequence[Drawing], *, core: float = CORE) -> None:
        self.things = things
        self._drawings = drawings
        self._core = [at for at, thing in enumerate(things) if thing.core]
        self._others = [at for at, thing in enumerate(things) if not thing.core]
        self._core_share = core if self._others else 1.0

    def of(self, *, core: float) -> "Scenes":
        """The same with another share of the core."""
        return Scenes(self.things, self._drawings, core=core)

    def draw(
        self, choose: random.Random, kind: Kind | None = None, *, split: Split = "train", style: int | None = None
    ) -> tuple[Scene, Pixels]:
        kind = kind or choose.choices(list(SHARES), list(SHARES.values()))[0]
        style = choose.randrange(len(self._drawings[0].pictures)) if style is None else style
        pool = self._core if choose.random() < self._core_share else self._others
        first = choose.choice(pool)
        if kind == "recolour":
            coloured = [
                at for at in (choose.choice(pool) for _ in range(40)) if self._drawings[at].hues[style] is not None
            ]
            if not coloured:
                kind = "plain"
            first = coloured[0] if coloured else first
        if kind == "count":
            first = next(at for at in iter(lambda: choose.choice(self._core), None) if self.things[at].countable)
        drawing = self._drawings[first]
        picture, colour, background = drawing.pictures[style], drawing.colour(style), "white"
        if kind == "recolour":
            colour = choose.choice(recolourings(self.things[first], split))
            hue = drawing.hues[style]
            assert hue is not None
            picture = rotate_hue(picture, COLOURS[colour] - hue)
        elif kind == "background":
            background = choose.choice(tuple(COLOURS))
        canvas = _canvas(background, choose)
        mirror = self.things[first].short_name not in UNMIRRORED
        things: tuple[int, ...] = (first,)
        count = 1
        if kind == "pair":
            second = choose.choice([at for at in (choose.choice(self._core) for _ in range(8)) if at != first])
            things = first, second
            other = self._drawings[second].pictures[style]
            upright = choose.random() < 0.2
            near, far = ((32, 17), (32, 47)) if upright else ((17, 32), (47, 32))
            _place(canvas, picture, near, choose.uniform(0.42, 0.5), choose, mirror, 2.5)
            _place(canvas, other, far, choose.uniform(0.42, 0.5), choose, mirror, 2.5)
            colour = ""
        elif kind == "count":
            count = choose.randint(2, MOST)
            for centre, scale in _places(count, choose):
                _place(canvas, picture, centre, scale, choose, mirror, 1.5)
        else:
            _place(canvas, picture, (32, 32), choose.uniform(0.62, 1.04), choose, mirror, 5)
        scene = Scene(kind, things, style, colour, background, count)
        return scene, _spoil(canvas, choose)


def recolourings(thing: Thing, split: Split) -> list[str]:
    if split == "all":
        return list(COLOURS)
    held = list(COLOURS)[zlib.crc32(thing.short_name.encode()) % len(COLOURS)]
    return [held] if split == "held" else [colour for colour in COLOURS if colour != held]


def _turn(one: float, other: float) -> float:
    """Degrees between two hues."""
    return abs((one - other + 180) % 360 - 180)


def _share(picture: Image.Image, hue: float) -> float:
    """Of what is drawn, the part whose hue is near this one."""
    rgba = np.asarray(picture).astype(np.float32) / 255
    solid, colours = rgba[..., 3] > 0.5, rgba[..., :3]
    hues = np.asarray(picture.convert("RGB").convert("HSV"))[..., 0].astype(np.float32) / 256 * 360
    near = np.abs((hues - hue + 180) % 360 - 180) < 2 * NEAR
    coloured = colours.max(-1) - colours.min(-1) > 0.2
    return float((near & coloured & solid).sum() / solid.sum())


def _brightness(picture: Image.Image) -> float:
    rgba = np.asarray(picture).astype(np.float32) / 255
    return float(np.median(rgba[..., :3].max(-1)[rgba[..., 3] > 0.5]))


def _canvas(background: str, choose: random.Random) -> Image.Image:
    if background != "white":
        hue = (COLOURS[background] + choose.uniform(-8, 8)) % 360 / 360
        saturation = choose.uniform(0.4, 0.6) if background == "pink" else choose.uniform(0.5, 1.0)
        colour = colorsys.hsv_to_rgb(hue, saturation, choose.uniform(0.75, 1.0))
    elif choose.random() < TINT:
        colour = choose.uniform(0.88, 1.0), choose.uniform(0.88, 1.0), choose.uniform(0.88, 1.0)
    else:
        colour = (1.0, 1.0, 1.0)
    red, green, blue = (round(255 * value) for value in colour)
    return Image.new("RGBA", (EDGE, EDGE), (red, green, blue, 255))


def _places(count: int, choose: random.Random) -> list[tuple[tuple[float, float], float]]:
    """Centres and scale of so many, in some of the places of a grid."""
    columns, rows = SPREAD[count]
    if count == 3 and choose.random() < 0.5:
        columns, rows = 2, 2
    if choose.random() < 0.3 and rows == 1:
        columns, rows = rows, columns
    width, height = EDGE / columns, EDGE / rows
    grid = [((column + 0.5) * width, (row + 0.5) * height) for row in range(rows) for column in range(columns)]
    scale = min(width, height) / EDGE * choose.uniform(0.78, 0.95)
    return [(centre, scale) for centre in choose.sample(grid, count)]


def _place(
    canvas: Image.Image,
    picture: Image.Image,
    centre: tuple[float, float],
    scale: float,
    choose: random.Random,
    mirror: bool,
    shift: float,
) -> None:
    """Draws it onto the canvas: turned by up to 12 degrees, a little wider or higher than it is, shifted, mirrored."""
    if mirror and choose.random() < 0.5:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    angle, wider = math.radians(choose.uniform(-12, 12)), choose.uniform(0.92, 1.08)
    across, down = centre[0] + choose.uniform(-shift, shift), centre[1] + choose.uniform(-shift, shift)
    size = max(8, round(EDGE * scale))
    # Made smaller by an average over areas first: an affine map alone would skip pixels.
    small = picture.convert("RGBa").resize((round(size * wider), size), Image.Resampling.BILINEAR)
    cos, sin = math.cos(angle), math.sin(angle)
    inverse = (
        cos, sin, small.width / 2 - cos * across - sin * down,
        -sin, cos, small.height / 2 + sin * across - cos * down,
    )  # fmt: skip
    turned = small.transform((EDGE, EDGE), Image.Transform.AFFINE, inverse, resample=Image.Resampling.BICUBIC)
    canvas.alpha_composite(turned.convert("RGBA"))


def _spoil(canvas: Image.Image, choose: random.Random) -> Pixels:
    """Brighter or darker, sometimes blurred by a smaller size between, with noise: as pictures arrive."""
    picture = canvas.convert("RGB")
    if choose.random() < 0.2:
        edge = choose.randint(40, 60)
        picture = picture.resize((edge, edge), Image.Resampling.BILINEAR).resize((EDGE, EDGE), Image.Resampling.BICUBIC)
    pixels: NDArray[np.floating] = np.asarray(picture).astype(np.float32)
    if choose.random() < 0.5:
        noise = np.random.default_rng(choose.getrandbits(32))
        pixels = pixels * choose.uniform(0.85, 1.1) + noise.normal(0, choose.uniform(0, 6), pixels.shape)
    return np.clip(np.round(pixels), 0, 255).astype(np.uint8)
