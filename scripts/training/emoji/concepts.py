"""What the model learns to draw, and the captions that it learns it by."""

import random
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("concepts.txt")

# Degrees of hue.
COLOURS = {"red": 0, "orange": 28, "yellow": 52, "green": 120, "blue": 215, "purple": 275, "pink": 325}
COLOUR_WORDS = frozenset({*COLOURS, "black", "white", "brown", "gold"})


@dataclass(frozen=True, slots=True)
class Concept:
    short_name: str  # in emoji-datasource
    names: tuple[str, ...]  # the words for it, the usual one first

    @property
    def bare(self) -> str:
        """The last name without its colour, if it starts with one."""
        name = self.names[-1]
        first, _, rest = name.partition(" ")
        return rest if rest and first in COLOUR_WORDS else name


def read_concepts(file: Path = FILE) -> list[Concept]:
    """Lines of `short_name: name, name`; without names the short one with spaces. Raises ValueError for one twice."""
    found: dict[str, Concept] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        short, _, names = text.partition(":")
        words = tuple(name.strip() for name in names.split(",")) if names else (short.replace("_", " "),)
        if short in found:
            raise ValueError(f"{file}: {short} is there twice")
        found[short] = Concept(short, words)
    return list(found.values())


def caption(concept: Concept, choose: random.Random, *, colour: str = "", background: str = "") -> str:
    """One of its names, as people may write it."""
    name = f"{colour} {concept.bare}" if colour else choose.choice(concept.names)
    if choose.random() < 0.2:
        article = "an" if name[0] in "aeiou" else "a"
        name = choose.choice(
            (f"{article} {name}", f"{article} {name}", f"picture of {article} {name}", f"{name} emoji")
        )
    return f"{name} on a {background} background" if background else name
