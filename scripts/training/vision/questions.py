"""What is asked about a scene, in many wordings, some of which are kept for the evaluation; and what is answered."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scripts.training.vision.scenes import Scene
from scripts.training.vision.things import Thing, is_plural, phrase

Topic = Literal["name", "describe", "colour", "background", "count", "kind"]
COUNTS = ("no", "one", "two", "three", "four", "five")

# {thing}, {things}: its bare name. The wordings behind the bar are never trained on.
WORDINGS: dict[Topic, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "name": (
        (
            "What is this?", "What's this?", "What is it?", "what is this", "What is in the picture?",
            "What is in this image?", "What's in the image?", "What is in the photo?", "What do you see?",
            "What do you see in the picture?", "What can you see in this image?", "What does the picture show?",
            "What is shown in the picture?", "What is shown here?", "What object is this?", "What thing is this?",
            "Which object is in the image?", "Name the object in the picture.", "Name what you see.",
            "Identify the object in the image.", "Tell me what this is.", "Can you tell me what this is?",
            "Do you know what this is?", "Say what is in the picture.", "What is this a picture of?",
            "What is the main subject of this image?", "What have I drawn?", "Recognise this, please.", "",
        ),
        (
            "What can you see here?", "What does this image show?", "Please tell me what is shown in this picture.",
            "Which thing do you see?", "What am I looking at?", "What's in this picture?",
            "What object do you see in the image?", "Could you identify this for me?",
        ),
    ),
    "describe": (
        (
            "Describe the image.", "Describe this picture.", "Describe what you see.", "Can you describe this image?",
            "Give a short description of the picture.", "What is in the picture, and on what background?",
            "Please describe the picture.",
        ),
        ("Describe the picture in one sentence.", "Can you give me a description of this image?"),
    ),
    "colour": (
        (
            "What colour is it?", "What color is it?", "What colour is the {thing}?", "What color is the {thing}?",
            "What is the colour of the {thing}?", "What color does the {thing} have?", "Which colour is this?",
            "Tell me the color of the {thing}.", "What colour is this {thing}?", "Which color does it have?",
        ),
        (
            "What is the color of the {thing}?", "Which colour does the {thing} have?", "What color is this thing?",
            "Name the color of the {thing}.",
        ),
    ),
    "background": (
        (
            "What colour is the background?", "What color is the background?", "Which colour is the background?",
            "What is the colour of the background?", "What is the background like?", "What color is behind it?",
        ),
        ("What is the background color?", "Which color does the background have?"),
    ),
    "count": (
        (
            "How many things are there?", "How many {things} are there?", "How many {things} do you see?",
            "How many {things} are in the picture?", "Count the {things}.", "How many objects do you see?",
            "How many of them are there?", "What is the number of {things}?", "How many {things} are in the image?",
        ),
        (
            "How many {things} can you see?", "How many {things} does the picture show?",
            "Can you count the {things}?", "How many objects are in the image?",
        ),
    ),
    "kind": (
        ("What kind of thing is it?", "What sort of thing is this?", "What type of object is it?"),
        ("What kind of object is this?",),
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Turn:
    topic: Topic
    question: str
    answer: str


_NAME: tuple[Topic, ...] = ("name",)


def topics(scene: Scene) -> list[Topic]:
    """That can be asked about, the ones that matter more more often."""
    match scene.kind:
        case "pair":
            return ["name", "name", "name", "describe", "background", "count"]
        case "count":
            return ["name", "count", "count", "count", "background"]
        case "recolour":
            return ["name", "name", "describe", "colour", "colour", "colour", "kind", "count"]
        case "background":
            return ["name", "name", "describe", "background", "background", "kind"]
    told: list[Topic] = ["colour"] if scene.colour else []
    return [*7 * _NAME, "describe", "background", "count", "kind", *told]


def ask(
    scene: Scene, things: Sequence[Thing], choose: random.Random, topic: Topic | None = None, *, held: bool = False
) -> Turn:
    """`held`: in a wording that is kept for the evaluation."""
    about = choose.choice(topics(scene)) if topic is None else topic
    thing = things[scene.things[0]]
    wording = choose.choice(WORDINGS[about][held])
    return Turn(about, wording.format(thing=thing.bare, things=thing.plural), answer(scene, things, about))


def answer(scene: Scene, things: Sequence[Thing], topic: Topic) -> str:
    thing = things[scene.things[0]]
    match topic:
        case "name":
            many = scene.count > 1 or scene.kind == "pair" or is_plural(thing.name)
            return f"{'These are' if many else 'This is'} {subject(scene, things)}."
        case "describe":
            return f"The picture shows {subject(scene, things)} on a {scene.background} background."
        case "colour":
            return f"{'They are' if is_plural(thing.bare) else 'It is'} {scene.colour}."
        case "background":
            return f"The background is {scene.background}."
        case "count" if scene.kind == "pair":
            return "There are two things."
        case "count":
            return f"There are {COUNTS[scene.count]} {thing.plural}." if scene.count > 1 else "There is one."
        case "kind":
            return f"It is {phrase(thing.kind)}."


def subject(scene: Scene, things: Sequence[Thing]) -> str:
    first = things[scene.things[0]]
    if scene.kind == "count":
        return f"{COUNTS[scene.count]} {first.plural}"
    if scene.kind == "recolour":
        return phrase(f"{scene.colour} {first.bare}")
    return " and ".join(phrase(things[at].name) for at in scene.things)
