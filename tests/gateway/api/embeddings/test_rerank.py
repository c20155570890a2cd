"""`/v1/rerank` and its other addresses on the wire, over a worker whose answers the test speaks."""

from typing import Any

import pytest

from pipelines.messages.embedding import RerankRequest
from tests.gateway.api.embeddings.scripted_embedding import opened
from tests.gateway.scripted_app import ScriptedApp

pytestmark = pytest.mark.asyncio(loop_scope="module")

RERANK = "/v1/rerank"


async def rerank(it: ScriptedApp, documents: Any, **fields: Any) -> Any:
    return await it.client.post(RERANK, json={"model": "scripted", "query": "q", "documents": documents, **fields})


async def test_a_ranking(it: ScriptedApp) -> None:
    body = (await rerank(it, ["long one", {"text": "s", "id": 9}, "mid", "low"], top_n=3)).json()
    assert [result["index"] for result in body["results"]] == [1, 2, 3]  # equal scores in the order of the documents
    assert [result["relevance_score"] for result in body["results"]] == [1.0, 1 / 3, 1 / 3]
    assert all("document" not in result for result in body["results"])
    assert (body["method"], body["model"]) == ("cosine", "scripted")
    assert body["usage"]["total_tokens"] == 7
    assert body["id"].startswith("rank-")


async def test_a_ranking_with_its_documents(it: ScriptedApp) -> None:
    body = (await rerank(it, ["aa", {"text": "b"}], return_documents=True, top_n=9)).json()
    assert [result["document"] for result in body["results"]] == [{"text": "b"}, {"text": "aa"}]
    body = (await rerank(it, ["aa", {"text": "b"}], return_documents="string")).json()
    assert [result["document"] for result in body["results"]] == ["b", "aa"]


async def test_what_a_ranking_asks_for(it: ScriptedApp) -> None:
    await rerank(it, ["a"])
    assert opened(it) == RerankRequest(query="q", documents=["a"], truncate="end")
    await rerank(it, ["a"], truncate="none", max_tokens_per_doc=64)
    assert opened(it) == RerankRequest(query="q", documents=["a"], truncate="none", max_tokens_per_document=64)


@pytest.mark.parametrize(
    ("path", "body", "wanted"),
    [
        # cohere 5.21.1: ClientV2.rerank, which LlamaIndex's CohereRerank 0.10.0 goes by; Client.rerank
        ("/v2/rerank", {"top_n": 2}, {}),
        ("/v1/rerank", {"top_n": 2, "return_documents": True}, {}),
        # langchain-cohere 0.6.0 CohereRerank, cohere-haystack 11.0.0 CohereRanker
        ("/v2/rerank", {"top_n": 3, "max_tokens_per_doc": None}, {}),
        ("/v2/rerank", {"top_n": 10, "max_tokens_per_doc": 4096}, {"max_tokens_per_document": 4096}),
        # litellm 1.110.2: cohere, hosted_vllm and infinity, jina_ai and itself; LangChain's and LlamaIndex's JinaRerank
        ("/v2/rerank", {"top_n": 2, "return_documents": True}, {}),
        ("/rerank", {"top_n": 2, "return_documents": True}, {}),
        ("/v1/rerank", {"top_n": 2}, {}),
        # others by hand
        ("/rerank", {"top_k": 2, "truncate": "START"}, {"truncate": "start"}),
        (
            "/rerank",
            {"top_k": 2, "top_n": 2, "truncation": False},
            {"truncate": "none", "names": {"truncate": "truncation"}},
        ),
    ],
)
async def test_what_clients_send_to_rank(
    it: ScriptedApp, path: str, body: dict[str, Any], wanted: dict[str, Any]
) -> None:
    documents = ["a bridge", "a cat"]
    sent = {"model": "scripted", "query": "pets", "documents": documents, **body}
    answer = await it.client.post(path, json=sent)
    assert answer.status_code == 200, answer.text
    assert opened(it) == RerankRequest(query="pets", documents=documents, **wanted)
    told = answer.json()
    assert [result["index"] for result in told["results"]] == [1, 0]
    if body.get("return_documents"):
        assert told["results"][0]["document"] == {"text": "a cat"}


async def test_voyages_clients_find_the_results_under_their_name(it: ScriptedApp) -> None:
    """voyageai 0.3.7 and, through it, LlamaIndex and LangChain send the first; litellm 1.110.2 the second."""
    documents = ["a bridge", "a cat", "a boat"]
    body = (await rerank(it, documents, top_k=2, truncation=True)).json()
    assert (body["object"], body["data"]) == ("list", body["results"])
    body = (await rerank(it, documents, top_k=1, return_documents=True)).json()
    assert body["data"] == [{"index": 1, "relevance_score": 0.2, "document": "a cat"}]
    assert body["results"] == [{"index": 1, "relevance_score": 0.2, "document": {"text": "a cat"}}]
    assert "data" not in (await rerank(it, documents, top_n=1)).json()


@pytest.mark.parametrize(
    ("body", "truncate", "told"),
    [
        # llama-index-postprocessor-tei-rerank; litellm 1.110.2's huggingface
        ({}, "end", [{"index": 1, "score": 0.2}, {"index": 0, "score": 0.125}]),
        (
            {"raw_scores": False, "truncation_direction": "Right", "top_n": 1, "return_text": True},
            "end",
            [{"index": 1, "score": 0.2, "text": "a cat"}],
        ),
        ({"truncate": True, "truncation_direction": "left", "top_n": 1}, "start", [{"index": 1, "score": 0.2}]),
        ({"truncate": False, "top_n": 1}, "none", [{"index": 1, "score": 0.2}]),
    ],
)
@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank"])
async def test_texts_are_ranked_as_text_embeddings_inference_does(
    it: ScriptedApp, path: str, body: dict[str, Any], truncate: Any, told: Any
) -> None:
    """The first model that embeds or ranks is the one: the body has no name for it."""
    answer = await it.client.post(path, json={"query": "pets", "texts": ["a bridge", "a cat"], **body})
    assert (answer.status_code, answer.json()) == (200, told)
    assert opened(it) == RerankRequest(
        query="pets", documents=["a bridge", "a cat"], truncate=truncate, names={"documents": "texts"}
    )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"texts": []}, "texts"),
        ({"texts": ["a", ""]}, "texts[1]"),
        ({"texts": ["a", 1]}, "texts[1]"),
        ({"query": ""}, "query"),
        ({"raw_scores": True}, "raw_scores"),
        ({"truncate": False, "truncation_direction": "Left"}, "truncation_direction"),
        ({"documents": ["a"]}, "documents"),
        ({"model": "nobody"}, "model"),
    ],
)
async def test_bad_texts_are_named(it: ScriptedApp, fields: dict[str, Any], param: str) -> None:
    answer = await it.client.post("/rerank", json={"query": "q", "texts": ["a"], **fields})
    assert (answer.status_code, answer.json()["error"]["param"]) == (404 if param == "model" else 400, param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"documents": []}, "documents"),
        ({"documents": ["a", ""]}, "documents[1]"),
        ({"documents": [{"text": "a\0"}]}, "documents[0].text"),
        ({"documents": [{"title": "a"}]}, "documents[0].text"),
        ({"documents": [1]}, "documents[0]"),
        ({"documents": ["a"] * 2049}, "documents"),
        ({"query": ""}, "query"),
        ({"top_n": 0}, "top_n"),
        ({"rank_fields": ["a"]}, "rank_fields"),
        ({"max_chunks_per_doc": 3}, "max_chunks_per_doc"),
        ({"top_n": 1, "top_k": 2}, "top_k"),
        ({"top_k": 0}, "top_k"),
        ({"return_documents": "text"}, "return_documents"),
        ({"truncate": "none", "truncation": True}, "truncation"),
    ],
)
async def test_a_bad_ranking_is_named(it: ScriptedApp, fields: dict[str, Any], param: str) -> None:
    answer = await it.client.post(RERANK, json={"model": "scripted", "query": "q", "documents": ["a"], **fields})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


async def test_null_is_absence_in_either_body(it: ScriptedApp) -> None:
    answer = await rerank(it, ["a", "b"], texts=None)
    assert [result["index"] for result in answer.json()["results"]] == [0, 1]
    answer = await it.client.post("/rerank", json={"query": "q", "texts": ["a", "b"], "documents": None})
    assert [result["index"] for result in answer.json()] == [0, 1]
    answer = await it.client.post("/rerank", json={"model": "scripted", "query": "q", "texts": None})
    assert answer.json()["error"]["param"] == "documents"
