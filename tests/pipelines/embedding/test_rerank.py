"""Rankings by the pipeline over a small encoder of our own."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.embedder.embedder_config import EmbedderConfig
from pipelines.base import InvalidRequest
from pipelines.embedding.job import cosines
from pipelines.messages.embedding import RerankRequest, Scores, Vectors
from pipelines.messages.frames import Done
from tests.pipelines.embedding.driver import CONFIG, EmbeddingDriver, embedding, last, rows, words

PROMPTS = {"query": "w1 ", "document": "w2 ", "clustering": "w3 "}


def test_documents_are_ranked_by_their_cosine(driver: EmbeddingDriver) -> None:
    driver.open("v", embedding("w5", "w6 w7", "w5", "w9"))
    vectors = rows(driver.run(), "v")
    driver.open("r", RerankRequest(query="w5", documents=["w6 w7", "w5", "w9"]))
    events = driver.run()
    (scores,) = [event for event in events if isinstance(event, Scores)]
    wanted = [float(np.dot(vectors[0], vectors[index])) for index in (1, 2, 3)]
    assert scores.method == "cosine"
    assert scores.scores == pytest.approx(wanted, abs=1e-6)
    assert scores.scores[1] == pytest.approx(1.0)
    assert not any(isinstance(event, Vectors) for event in events)
    done = last(events, "r")
    assert isinstance(done, Done)
    assert done.usage.prompt_tokens == 3 + 4 + 3 + 3


@pytest.mark.parametrize("family", ["text", "cross_encoder"])
def test_equal_documents_have_equal_scores_wherever_they_stand(tmp_path: Path, family: Any) -> None:
    """To the last bit, though a result may depend on its row; and they count as often as they are there."""
    config = replace(CONFIG, family=family, dimensions=1 if family == "cross_encoder" else 4)
    driver = EmbeddingDriver(tmp_path, config, tokens=20)
    driver.embedder.drift = 1e-4
    documents = ["w6 w7", *(words(count) for count in range(1, 12)), "w6 w7", words(9), words(70), "w6 w7", words(80)]
    driver.open("r", RerankRequest(query="w6 w7", documents=documents))
    events = driver.run()
    (scores,) = [event.scores for event in events if isinstance(event, Scores)]
    assert len(scores) == len(documents)
    assert scores[0] == scores[12] == scores[15]
    assert scores[9] == scores[13]
    assert scores[14] == scores[16]  # of what is left of them when they are cut
    done = last(events, "r")
    assert isinstance(done, Done)
    counts = [min(64, len(each.split()) + (5 if family == "cross_encoder" else 2)) for each in documents]
    assert done.usage.prompt_tokens == sum(counts) + (0 if family == "cross_encoder" else 4)


def test_a_cosine_does_not_depend_on_its_row() -> None:
    """As a matrix product's does, by the last bit."""
    generator = np.random.default_rng(3)
    vectors = generator.standard_normal((43, 384)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    wanted = cosines(vectors, 0)
    assert wanted[0] == 1.0
    for _ in range(20):
        order = generator.permutation(43)
        np.testing.assert_array_equal(cosines(vectors[order], int(np.flatnonzero(order == 0)[0])), wanted[order])


def test_a_ranking_by_cosine_tells_queries_from_documents(tmp_path: Path) -> None:
    driver = EmbeddingDriver(tmp_path, replace(CONFIG, prompts=PROMPTS))
    driver.open("v", embedding("w9", kind="query"))
    driver.open("w", embedding("w9", "w30", kind="document"))
    events = driver.run()
    (query,), documents = rows(events, "v").values(), rows(events, "w")
    driver.open("r", RerankRequest(query="w9", documents=["w9", "w30"]))
    (scores,) = [event.scores for event in driver.run() if isinstance(event, Scores)]
    assert scores == pytest.approx([float(np.dot(query, documents[index])) for index in (0, 1)], abs=1e-6)


def test_an_over_long_query_is_told_that_it_is_never_cut(driver: EmbeddingDriver) -> None:
    with pytest.raises(InvalidRequest) as refused:
        driver.open("r", RerankRequest(query=words(70), documents=["w1"]))
    assert refused.value.param == "query"
    assert refused.value.message == "'query' has 72 tokens, but the model takes 64; a query is never cut: shorten it"


def test_a_cross_encoder_scores_and_has_no_vectors(tmp_path: Path) -> None:
    config = EmbedderConfig(
        family="cross_encoder", dimensions=1, max_tokens=64, vocab_size=204, pad_id=0, token_types=True
    )
    driver = EmbeddingDriver(tmp_path, config)
    driver.open("r", RerankRequest(query="w5", documents=["w100", "w1 w1 w1", "w50"]))
    (scores,) = [event for event in driver.run() if isinstance(event, Scores)]
    assert scores.method == "cross_encoder"
    assert sorted(range(3), key=lambda index: -scores.scores[index]) == [0, 2, 1]
    with pytest.raises(InvalidRequest, match="/v1/rerank"):
        driver.open("e", embedding("w1"))
