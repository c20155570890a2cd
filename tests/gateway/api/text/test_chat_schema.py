"""Whatever a field holds, the request is taken or refused by that field's name."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.api.text import chat_request as chat
from gateway.api.text import completion_request as completions
from gateway.api.text.chat_request import ChatRequest
from gateway.api.text.completion_request import CompletionRequest
from gateway.errors import ApiError, decode_body

CHAT = msgspec.json.Decoder(ChatRequest)
COMPLETION = msgspec.json.Decoder(CompletionRequest)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def refusal(run: Any) -> ApiError | None:
    try:
        run()
    except ApiError as error:
        return error
    return None


def check(error: ApiError | None, field: str) -> None:
    if error is not None:
        assert error.status == 400
        assert error.param is not None
        assert error.param.split(".")[0].split("[")[0] == field
        assert field in error.message


@settings(max_examples=150)
@given(field=st.sampled_from(ChatRequest.__struct_fields__), value=JSON)
def test_chat(field: str, value: Any) -> None:
    body = msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": "x"}], field: value})
    check(refusal(lambda: chat.to_text_request(decode_body(body, CHAT), "tenant")), field)


@settings(max_examples=150)
@given(field=st.sampled_from(CompletionRequest.__struct_fields__), value=JSON)
def test_completions(field: str, value: Any) -> None:
    body = msgspec.json.encode({"model": "m", "prompt": "x", field: value})
    check(refusal(lambda: completions.to_text_request(decode_body(body, COMPLETION), "tenant")), field)


@pytest.mark.parametrize("decoder", [CHAT, COMPLETION])
@settings(max_examples=100)
@given(body=st.binary(max_size=40))
def test_bytes(decoder: msgspec.json.Decoder[Any], body: bytes) -> None:
    error = refusal(lambda: decode_body(body, decoder))
    assert error is not None
    assert error.status == 400
