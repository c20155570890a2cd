import pytest

from scripts.training.emoji.concepts import read_concepts
from scripts.training.vision.things import FILE, Thing, phrase, read_things


def thing(name: str, kind: str = "object") -> Thing:
    return Thing(name, (name,), kind, core=True)


def test_every_name_of_the_core_means_one_picture() -> None:
    concepts = [*read_concepts(), *read_concepts(FILE)]
    assert len(concepts) >= 300
    assert len({concept.short_name for concept in concepts}) == len(concepts)
    names = [name for concept in concepts for name in concept.names]
    assert len(names) == len(set(names))


def test_all_else_is_outside_the_core_but_signs_flags_and_people() -> None:
    core = {concept.short_name: ("Objects", "tool") for concept in (*read_concepts(), *read_concepts(FILE))}
    listed = {
        **core,
        "polar_expedition": ("Travel & Places", "transport-ground"),
        "flag-fr": ("Flags", "country-flag"),
        "clock130": ("Travel & Places", "time"),
        "cat2": ("Animals & Nature", "animal-mammal"),
    }
    things = read_things(listed)
    outside = things[len(core) :]
    assert all(each.core for each in things[: len(core)])
    assert [(each.name, each.kind) for each in outside] == [("polar expedition", "vehicle"), ("cat2", "animal")]


def test_an_animal_is_not_called_by_its_face_and_a_face_is() -> None:
    concepts = [*read_concepts(), *read_concepts(FILE)]
    listed = {concept.short_name: ("", "animal-mammal") for concept in concepts} | {"wink": ("", "face-affection")}
    names = {each.short_name: each.name for each in read_things(listed)}
    assert names["cow"] == "cow"
    assert names["wink"] == "winking face"


@pytest.mark.parametrize(
    ("name", "said", "plural"),
    [
        ("red apple", "a red apple", "apples"),
        ("owl", "an owl", "owls"),
        ("unicorn", "a unicorn", "unicorns"),
        ("fox", "a fox", "foxes"),
        ("cherry", "a cherry", "cherries"),
        ("slice of cake", "a slice of cake", "slices of cake"),
        ("mouse", "a mouse", "mice"),
        ("cheese", "cheese", "cheeses"),
        ("octopus", "an octopus", "octopuses"),
    ],
)
def test_names_in_sentences(name: str, said: str, plural: str) -> None:
    assert phrase(name) == said
    assert thing(name).plural == plural


def test_what_has_no_plural_is_not_counted() -> None:
    assert thing("owl").countable
    assert not thing("scissors").countable
    assert not thing("cheese").countable


def test_blue_cheese_has_no_article() -> None:
    assert phrase("blue cheese") == "blue cheese"
