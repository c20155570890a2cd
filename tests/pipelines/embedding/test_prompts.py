"""What comes before a text by its kind."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.base import InvalidRequest
from pipelines.messages.embedding import EmbeddingRequest
from pipelines.messages.text import TokenPrompt
from tests.pipelines.embedding.driver import CONFIG, EmbeddingDriver, embedding, rows

PROMPTS = {"query": "w1 ", "document": "w2 ", "clustering": "w3 "}


@pytest.mark.parametrize(
    ("kind", "before"),
    [(None, ""), ("query", "w1 "), ("search_query", "w1 "), ("retrieval.passage", "w2 "), ("Clustering", "w3 ")],
)
def test_a_text_gets_the_prompt_of_its_kind(tmp_path: Path, kind: str | None, before: str) -> None:
    driver = EmbeddingDriver(tmp_path, replace(CONFIG, prompts=PROMPTS))
    driver.open("plain", embedding(f"{before}w9", "w4"))
    driver.open("kind", embedding("w9", kind=kind))
    events = driver.run()
    assert rows(events, "kind")[0] == rows(events, "plain")[0]


@pytest.mark.parametrize(
    ("prompts", "kind", "says"),
    [(PROMPTS, "classification", "'query', 'document', 'clustering'"), ({}, "query", "embeds all texts alike")],
)
def test_a_kind_that_the_model_does_not_know_is_refused_in_the_callers_words(
    tmp_path: Path, prompts: dict[str, str], kind: str, says: str
) -> None:
    driver = EmbeddingDriver(tmp_path, replace(CONFIG, prompts=prompts))
    with pytest.raises(InvalidRequest, match=says) as refused:
        driver.open("a", embedding("w9", kind=kind, names={"input_type": "task"}))
    assert refused.value.param == "task"


def test_a_kind_is_for_texts(tmp_path: Path) -> None:
    driver = EmbeddingDriver(tmp_path, replace(CONFIG, prompts=PROMPTS))
    with pytest.raises(InvalidRequest, match="token ids") as refused:
        driver.open("a", EmbeddingRequest(inputs=[TokenPrompt([5])], kind="query"))
    assert refused.value.param == "input_type"
