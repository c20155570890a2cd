import random

import pytest

from scripts.training.vision.questions import WORDINGS, Topic, answer, ask, topics
from scripts.training.vision.scenes import Kind, Scene
from scripts.training.vision.things import Thing

THINGS = [
    Thing("apple", ("red apple", "apple"), "fruit", core=True),
    Thing("owl", ("owl",), "animal", core=True),
    Thing("scissors", ("scissors",), "object", core=True),
]


def scene(kind: Kind, *things: int, colour: str = "", background: str = "white", count: int = 1) -> Scene:
    return Scene(kind, things or (0,), 0, colour, background, count)


def test_no_wording_of_the_evaluation_is_trained_on() -> None:
    for trained, held in WORDINGS.values():
        assert held
        assert not {each.lower().rstrip("?.") for each in trained} & {each.lower().rstrip("?.") for each in held}


@pytest.mark.parametrize(
    ("shown", "topic", "said"),
    [
        (scene("plain"), "name", "This is a red apple."),
        (scene("plain", 2), "name", "These are scissors."),
        (scene("recolour", colour="blue"), "name", "This is a blue apple."),
        (scene("pair", 1, 0), "name", "These are an owl and a red apple."),
        (scene("count", 1, count=3), "name", "These are three owls."),
        (scene("background", 1, background="pink"), "describe", "The picture shows an owl on a pink background."),
        (scene("recolour", colour="blue"), "colour", "It is blue."),
        (scene("recolour", 2, colour="blue"), "colour", "They are blue."),
        (scene("plain"), "background", "The background is white."),
        (scene("count", 0, count=4), "count", "There are four apples."),
        (scene("plain"), "count", "There is one."),
        (scene("pair", 1, 0), "count", "There are two things."),
        (scene("plain", 1), "kind", "It is an animal."),
    ],
)
def test_answers(shown: Scene, topic: Topic, said: str) -> None:
    assert answer(shown, THINGS, topic) == said


def test_a_colour_is_asked_for_where_one_can_be_told() -> None:
    assert "colour" not in topics(scene("plain"))
    assert "colour" in topics(scene("plain", colour="red"))


def test_questions_name_what_they_ask_about() -> None:
    choose = random.Random(0)
    asked = {ask(scene("count", 1, count=2), THINGS, choose, "count", held=True).question for _ in range(40)}
    assert "How many owls can you see?" in asked
    assert not any("{" in each for each in asked)
