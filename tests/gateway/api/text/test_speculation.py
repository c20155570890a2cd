"""`speculation` in a request, and drafts in the usage of its answer."""

import msgspec
import pytest

from gateway.api.answer import usage
from gateway.api.text.chat_request import ChatRequest
from gateway.api.text.chat_request import to_text_request as chat
from gateway.api.text.completion_request import CompletionRequest
from gateway.api.text.completion_request import to_text_request as completion
from pipelines.messages.frames import Usage


@pytest.mark.parametrize(
    ("asked", "proposer", "most"),
    [
        (None, None, None),
        (False, None, 0),
        ({}, None, 8),
        ({"kind": "ngram"}, "ngram", 8),
        ({"kind": "draft"}, "draft", 8),
        ({"kind": "draft", "max_draft": 3}, "draft", 3),
    ],
)
def test_what_is_asked_reaches_the_pipeline(asked: object, proposer: str | None, most: int | None) -> None:
    talk = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "speculation": asked}
    text = {"model": "m", "prompt": "hello", "speculation": asked}
    for request in (
        chat(msgspec.convert(talk, ChatRequest), ""),
        completion(msgspec.convert(text, CompletionRequest), ""),
    ):
        assert (request.proposer, request.max_draft) == (proposer, most)


def test_usage_tells_of_drafts_where_there_were_any() -> None:
    both = (Usage(7, 5), Usage(7, 5, 0, 6, 4, "draft"))
    plain, drafted = (msgspec.json.decode(msgspec.json.encode(usage(of))) for of in both)
    assert "completion_tokens_details" not in plain
    assert drafted["completion_tokens_details"] == {
        "accepted_prediction_tokens": 4,
        "rejected_prediction_tokens": 2,
        "speculation": "draft",
    }
