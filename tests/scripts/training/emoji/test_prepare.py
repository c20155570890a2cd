import pytest
import torch
from torch.nn.functional import cosine_similarity

from scripts.training.emoji.prepare import WIDTH, WordVectors

pytestmark = pytest.mark.requires_weights


@pytest.fixture(scope="module")
def words() -> WordVectors:
    return WordVectors()


def likeness(words: WordVectors, one: str, other: str) -> float:
    return float(cosine_similarity(words.of(one), words.of(other), dim=0))


def test_words_that_mean_the_same_are_near_and_others_are_not(words: WordVectors) -> None:
    assert likeness(words, "car", "automobile") > likeness(words, "car", "banana") + 0.15
    assert likeness(words, "happy", "cheerful") > likeness(words, "happy", "rocket") + 0.15


def test_vectors_are_as_wide_in_one_direction_as_in_another(words: WordVectors) -> None:
    table = torch.stack([words.of(word) for word in words.common()])
    assert table.shape[1] == WIDTH
    assert table.mean(dim=0).abs().max() < 0.3
    assert 0.5 < table.std(dim=0).min() <= table.std(dim=0).max() < 2


def test_near_words_are_found(words: WordVectors) -> None:
    assert {"kitten", "cats"} <= set(words.near(["cat"], 60))
    assert len(words.near(["cat", "dog"], 7)) == 7


def test_no_text_has_no_direction(words: WordVectors) -> None:
    assert not words.of("").any()
