"""What may be in a picture: the core, which the model is held to, and all else that there are emoji of."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from scripts.training.emoji.concepts import COLOUR_WORDS, Concept, read_concepts

FILE = Path(__file__).with_name("things.txt")
LEFT_OUT = frozenset({"Flags", "Component", "Symbols", "People & Body"})
CLOCKS = tuple(f"clock{hour}" for hour in range(1, 13))

# Subcategories of emoji-datasource, by how they begin, and what one would call such a thing.
KINDS = {
    "animal-": "animal", "cat-face": "animal", "monkey-face": "animal", "plant-": "plant", "food-fruit": "fruit",
    "food-vegetable": "vegetable", "food-": "food", "drink": "drink", "place-": "place", "hotel": "place",
    "sky": "weather", "transport-": "vehicle", "face-": "face", "heart": "symbol", "emotion": "symbol",
    "clothing": "clothing", "musical-instrument": "instrument", "tool": "tool", "sport": "game", "game": "game",
}  # fmt: skip
KIND = "object"  # any other
MASS = frozenset(
    {"bacon", "bread", "broccoli", "candy", "cheese", "chocolate", "corn", "fire", "garlic", "honey", "popcorn",
     "pot of honey", "sushi"}
)  # fmt: skip
UNCHANGED = {"sheep": "sheep", "fish": "fish", "mouse": "mice", "dice": "dice", "knife": "knives"}


@dataclass(frozen=True, slots=True)
class Thing:
    short_name: str  # in emoji-datasource
    names: tuple[str, ...]  # the words for it, the one that the model learns to say first
    kind: str
    core: bool

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def bare(self) -> str:
        """Its name without its colour, if it starts with one."""
        first, _, rest = self.name.partition(" ")
        return rest if rest and first in COLOUR_WORDS else self.name

    @property
    def plural(self) -> str:
        """Of its bare name."""
        head, of, rest = self.bare.partition(" of ")
        front, space, noun = head.rpartition(" ")
        return front + space + _plural(noun) + of + rest

    @property
    def countable(self) -> bool:
        return self.bare not in MASS and not is_plural(self.bare)


def read_things(listed: Mapping[str, tuple[str, str]]) -> list[Thing]:
    """The core first. `listed`: (category, subcategory) by short name, of pictures that are there."""
    concepts = [*read_concepts(), *read_concepts(FILE)]
    core = [_thing(concept, listed[concept.short_name], core=True) for concept in concepts]
    known = {thing.short_name for thing in core}
    taken = {name for thing in core for name in thing.names}
    others = []
    for short, where in listed.items():
        if short in known or where[0] in LEFT_OUT or any(short.startswith(clock) for clock in CLOCKS):
            continue
        name = short.replace("_", " ")
        if name not in taken:
            others.append(_thing(Concept(short, (name,)), where, core=False))
    return [*core, *others]


def read_listed(source: Path) -> dict[str, tuple[str, str]]:
    """(category, subcategory) of every emoji in an unpacked emoji-datasource package."""
    entries = json.loads((source / "emoji.json").read_text(encoding="utf-8"))
    return {entry["short_name"]: (entry["category"], entry["subcategory"]) for entry in entries}


def _thing(concept: Concept, where: tuple[str, str], *, core: bool) -> Thing:
    kind = next((kind for begin, kind in KINDS.items() if where[1].startswith(begin)), KIND)
    thing = Thing(concept.short_name, concept.names, kind, core)
    # An animal of which there is the head alone is called by its name.
    plain = [name for name in thing.names if kind == "face" or not name.endswith(" face")]
    return replace(thing, names=(*plain, *(name for name in thing.names if name not in plain)))


def phrase(name: str) -> str:
    """With its article."""
    if is_plural(name) or name in MASS or name.partition(" ")[2] in MASS:
        return name
    return f"{'an' if name[0] in 'aeiou' and not name.startswith('uni') else 'a'} {name}"


def is_plural(name: str) -> bool:
    head = name.partition(" of ")[0]
    return head.endswith("s") and not head.endswith(("ss", "us"))


def _plural(noun: str) -> str:
    if noun in UNCHANGED:
        return UNCHANGED[noun]
    if noun.endswith(("s", "x", "ch", "sh")) or noun in ("potato", "tomato", "mango", "volcano"):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"
