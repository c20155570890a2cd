import random
from pathlib import Path

import pytest

from scripts.training.emoji.concepts import Concept, caption, read_concepts


def test_every_name_means_one_picture() -> None:
    concepts = read_concepts()
    assert len(concepts) >= 200
    names = [name for concept in concepts for name in concept.names]
    assert len(names) == len(set(names))
    assert all(name == name.lower().strip() for name in names)


def test_a_concept_without_names_is_called_by_its_short_name(tmp_path: Path) -> None:
    file = tmp_path / "concepts.txt"
    file.write_text("# a comment\n\npolar_bear\ncat2: cat, pussycat\n")
    assert read_concepts(file) == [Concept("polar_bear", ("polar bear",)), Concept("cat2", ("cat", "pussycat"))]
    file.write_text("cat\ncat: kitten\n")
    with pytest.raises(ValueError, match="cat is there twice"):
        read_concepts(file)


def test_a_colour_in_a_caption_takes_the_place_of_the_names_own() -> None:
    choose = random.Random(0)
    apple = Concept("apple", ("red apple",))
    captions = {caption(apple, choose, colour="blue") for _ in range(50)}
    assert "blue apple" in captions
    assert not any("red" in each for each in captions)
    assert all("blue apple" in each for each in captions)


def test_captions_say_the_background() -> None:
    choose = random.Random(0)
    assert caption(Concept("owl", ("owl",)), choose, background="pink").endswith(" on a pink background")


def test_articles_fit() -> None:
    choose = random.Random(0)
    captions = {caption(Concept("owl", ("owl",)), choose) for _ in range(200)}
    assert "an owl" in captions
    assert "a owl" not in captions
