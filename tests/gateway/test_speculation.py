"""`speculation` in a request, and drafts in the usage of its answer."""

import msgspec
import pytest

from gateway.schemas.answer import usage
from gateway.schemas.chat import ChatRequest
from gateway.schemas.chat import to_text_request as chat
from gateway.schemas.completions import CompletionRequest
from gateway.schemas.completions import to_text_request as completion
from pipelines.messages import Usage


@pytest.mark.parametrize(
    ("asked", "most"),
    [(None, None), (False, 0), ({}, 8), ({"kind": "ngram"}, 8), ({"kind": "ngram", "max_draft": 3}, 3)],
)
def test_what_is_asked_reaches_the_pipeline(asked: object, most: int | None) -> None:
    talk = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "speculation": asked}
    text = {"model": "m", "prompt": "hello", "speculation": asked}
    assert chat(msgspec.convert(talk, ChatRequest), "").max_draft == most
    assert completion(msgspec.convert(text, CompletionRequest), "").max_draft == most


def test_usage_tells_of_drafts_where_there_were_any() -> None:
    plain, drafted = (msgspec.json.decode(msgspec.json.encode(usage(of))) for of in (Usage(7, 5), Usage(7, 5, 0, 6, 4)))
    assert "completion_tokens_details" not in plain
    assert drafted["completion_tokens_details"] == {"accepted_prediction_tokens": 4, "rejected_prediction_tokens": 2}
