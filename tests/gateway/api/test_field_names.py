"""A limit's error names the field as the client sent it, whichever of its names that was and whoever finds it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.api.embeddings.request import EmbeddingsRequest, to_embedding_request
from gateway.api.embeddings.rerank import parse_rerank, to_rerank_request
from gateway.api.text import chat_request, completion_request
from gateway.api.text.chat_request import ChatRequest
from gateway.api.text.completion_request import CompletionRequest
from gateway.api.texts import renamed
from gateway.errors import ApiError, decode_body
from pipelines.base import InvalidRequest, Ticket
from pipelines.messages.text import TextRequest
from tests.pipelines.embedding.driver import CONFIG, EmbeddingDriver
from tests.pipelines.text.fakes import CONTEXT, create_pipeline

CHAT = msgspec.json.Decoder(ChatRequest)
COMPLETION = msgspec.json.Decoder(CompletionRequest)
EMBEDDINGS = msgspec.json.Decoder(EmbeddingsRequest)


def chat(fields: Mapping[str, Any]) -> TextRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    return chat_request.to_text_request(decode_body(msgspec.json.encode(body), CHAT), "")


def completion(fields: Mapping[str, Any]) -> TextRequest:
    body = {"model": "m", "prompt": "hi", **fields}
    return completion_request.to_text_request(decode_body(msgspec.json.encode(body), COMPLETION), "")


def embed(fields: Mapping[str, Any]) -> Any:
    body = {"model": "m", "input": ["w1 w2 w3"], **fields}
    return to_embedding_request(decode_body(msgspec.json.encode(body), EMBEDDINGS))


def rerank(fields: Mapping[str, Any]) -> Any:
    body = parse_rerank(msgspec.json.encode({"model": "m", "query": "w1", **fields}))
    request = to_rerank_request(body)
    assert getattr(body, "most", None) is None
    return request


# --- what the gateway finds -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "param", "fields"),
    [
        (chat, "max_tokens", {"max_tokens": 0}),
        (chat, "max_completion_tokens", {"max_completion_tokens": 0}),
        (chat, "top_logprobs", {"logprobs": True, "top_logprobs": 21}),
        (completion, "logprobs", {"logprobs": 21}),
        (embed, "dimensions", {"dimensions": 0}),
        (embed, "output_dimension", {"output_dimension": 0}),
        (embed, "input_type", {"input_type": ""}),
        (embed, "task", {"task": ""}),
        (embed, "truncate", {"truncate": "middle"}),
        (embed, "truncation", {"truncation": "middle"}),
        (rerank, "top_n", {"documents": ["a"], "top_n": 0}),
        (rerank, "top_k", {"documents": ["a"], "top_k": 0}),
        (rerank, "top_n", {"texts": ["a"], "top_n": 0}),
        (rerank, "documents", {"documents": []}),
        (rerank, "texts", {"texts": []}),
        (rerank, "documents[0]", {"documents": [""]}),
        (rerank, "texts[0]", {"texts": [""]}),
    ],
)
def test_a_limit_of_the_wire(ask: Any, param: str, fields: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as refused:
        ask(fields)
    assert (refused.value.status, refused.value.param) == (400, param)
    assert param in refused.value.message


# --- what only the model can tell -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "param", "fields"),
    [
        (chat, "max_tokens", {"max_tokens": CONTEXT}),
        (chat, "max_completion_tokens", {"max_completion_tokens": CONTEXT}),
        (chat, "max_tokens", {"max_tokens": CONTEXT, "max_completion_tokens": CONTEXT}),
        (completion, "max_tokens", {"max_tokens": CONTEXT}),
        (chat, "messages", {"messages": [{"role": "user", "content": "x" * CONTEXT}]}),
        (completion, "prompt", {"prompt": "x" * CONTEXT}),
    ],
)
def test_a_limit_of_a_text_model(ask: Any, param: str, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        create_pipeline().prepare(Ticket("r", "interactive", 0.0), ask(fields))
    error = refused.value
    assert (error.param, error.code) == (param, "context_length_exceeded")
    if "max" in param:
        assert f" {param} {CONTEXT} " in error.message


LONG = " ".join(f"w{number}" for number in range(100))


@pytest.mark.parametrize(
    ("ask", "param", "named", "fields"),
    [
        (embed, "dimensions", "dimensions", {"dimensions": 4096}),
        (embed, "output_dimension", "output_dimension", {"output_dimension": 4096}),
        (embed, "input_type", "input_type", {"input_type": "nothing"}),
        (embed, "task", "task", {"task": "nothing"}),
        (embed, "truncate_prompt_tokens", "truncate_prompt_tokens", {"truncate_prompt_tokens": 4096}),
        (embed, "input[0]", "'truncate'", {"input": [LONG]}),
        (embed, "input[0]", "'truncation'", {"input": [LONG], "truncation": False}),
        (rerank, "documents[1]", "'truncate'", {"documents": ["w1", LONG], "truncate": "none"}),
        (rerank, "documents[1]", "'truncation'", {"documents": ["w1", LONG], "truncation": False}),
        (rerank, "texts[1]", "'truncate'", {"texts": ["w1", LONG], "truncate": False}),
    ],
)
def test_a_limit_of_an_encoder(tmp_path: Path, ask: Any, param: str, named: str, fields: dict[str, Any]) -> None:
    driver = EmbeddingDriver(tmp_path, CONFIG)
    with pytest.raises(InvalidRequest) as refused:
        driver.open("a", ask(fields))
    assert refused.value.param == param
    assert named in refused.value.message


def test_only_what_is_called_otherwise_has_a_name() -> None:
    assert renamed((("a", 1), ("b", 2)), (("c", None), ("d", None)), (("e", None), ("f", 0))) == {"e": "f"}
