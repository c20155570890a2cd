from typing import Annotated, Literal

import msgspec
import pytest
from litestar.exceptions import (
    ClientException,
    HTTPException,
    InternalServerException,
    MethodNotAllowedException,
    NotFoundException,
    ValidationException,
)
from msgspec import Meta, Struct

from gateway.backends.base import BackendError
from gateway.errors import (
    ApiError,
    backend_error,
    deadline_exceeded,
    decode_body,
    from_http_exception,
    headers_too_large,
    model_not_found,
    model_unavailable,
    overloaded,
    payload_too_large,
    too_many_pipelined,
    unauthorized,
    worker_lost,
)
from pipelines.messages.frames import Failed


class Part(Struct, forbid_unknown_fields=True):
    type: Literal["text", "image"]
    text: str = ""


class Message(Struct):
    content: list[Part]


class Body(Struct, forbid_unknown_fields=True):
    messages: list[Message]
    n: Annotated[int, Meta(ge=1, le=8)] | None = None
    max_tokens: int | None = None
    logit_bias: dict[int, float] | None = None


decoder = msgspec.json.Decoder(Body)


def refused(body: bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        decode_body(body, decoder)
    return caught.value


def test_a_body_is_decoded_strictly() -> None:
    assert decode_body(b'{"messages": [], "n": 2}', decoder) == Body(messages=[], n=2)


@pytest.mark.parametrize(
    ("body", "param", "code", "says"),
    [
        (b'{"messages": [], "n": "2"}', "n", "invalid_request", "'n' is not valid: expected int | null, got str."),
        (b'{"messages": [], "n": 9}', "n", "invalid_request", "'n' is not valid: expected int <= 8."),
        (b'{"messages": [], "n": true}', "n", "invalid_request", "'n' is not valid: expected int | null, got bool."),
        (b"{}", "messages", "invalid_request", "'messages' is required."),
        (b'{"messages": [], "max_token": 1}', "max_token", "unknown_parameter", "did you mean 'max_tokens'?"),
        (b'{"messages": [], "zzz": 1}', "zzz", "unknown_parameter", "known here: logit_bias, max_tokens, messages, n."),
        (
            b'{"messages": [{"content": []}, {"content": [{"type": "text"}, {"type": "texd"}]}]}',
            "messages[1].content[1].type",
            "invalid_request",
            "invalid enum value 'texd'; legal: text, image.",
        ),
        (
            b'{"messages": [], "logit_bias": {"x": 1}}',
            "logit_bias",
            "invalid_request",
            "expected int, got str as a key.",
        ),
        (b'{"messages": [{"content": "x"}]}', "messages[0].content", "invalid_request", "expected array, got str."),
        (b"[]", None, "invalid_request", "expected object, got array."),
        (b'{"messages": [', None, "invalid_json", "not valid JSON"),
        (b"", None, "invalid_json", "not valid JSON"),
        (b'{"messages": [{"content": [{"type": "text", "text": "\xff"}]}]}', None, "invalid_json", "not valid JSON"),
        (b"[" * 100_000, None, "invalid_request", "expected object"),
        (b'{"zzz": ' + b"[" * 100_000, "zzz", "unknown_parameter", ""),
    ],
)
def test_what_is_wrong_with_a_body_is_named(body: bytes, param: str | None, code: str, says: str) -> None:
    error = refused(body)
    assert (error.status, error.type) == (400, "invalid_request_error")
    assert (error.param, error.code) == (param, code)
    assert says in error.message


def test_nesting_without_end_is_bad_json() -> None:
    with pytest.raises(ApiError) as caught:
        decode_body(b"[" * 100_000, msgspec.json.Decoder(list[object]))
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")


def test_the_body_is_openais() -> None:
    assert msgspec.json.decode(model_not_found("x", ["b", "a"]).encode()) == {
        "error": {
            "message": "Model 'x' is not served here. Known: 'a', 'b'.",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
    }


@pytest.mark.parametrize(
    ("error", "status", "type_", "code", "headers"),
    [
        (unauthorized("x"), 401, "authentication_error", "invalid_api_key", {"www-authenticate": "Bearer"}),
        (overloaded(3), 429, "rate_limit_error", "overloaded", {"retry-after": "3"}),
        (overloaded(0), 429, "rate_limit_error", "overloaded", {"retry-after": "1"}),
        (model_unavailable("m"), 503, "server_error", "model_unavailable", {"retry-after": "5"}),
        (worker_lost(began=False), 503, "server_error", "worker_lost", {"retry-after": "5"}),
        (
            worker_lost(began=True),
            503,
            "server_error",
            "worker_lost",
            {"retry-after": "5", "x-should-retry": "false"},
        ),
        (deadline_exceeded(), 504, "server_error", "deadline_exceeded", {"x-should-retry": "false"}),
        (payload_too_large(9), 413, "invalid_request_error", "payload_too_large", {}),
        (headers_too_large(9), 431, "invalid_request_error", "headers_too_large", {}),
        (too_many_pipelined(9), 400, "invalid_request_error", "too_many_pipelined", {}),
    ],
)
def test_status_type_and_headers(error: ApiError, status: int, type_: str, code: str, headers: dict[str, str]) -> None:
    assert (error.status, error.type, error.code, error.headers) == (status, type_, code, headers)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (Failed("1", "invalid_request", "bad", "n"), 400, "invalid_request"),
        (Failed("1", "context_length_exceeded", "long", "messages"), 400, "context_length_exceeded"),
        (Failed("1", "cancelled", "x"), 499, "client_closed_request"),
        (Failed("1", "deadline_exceeded", "x"), 504, "deadline_exceeded"),
        (Failed("1", "worker_lost", "x"), 503, "worker_lost"),
        (BackendError("worker_lost", "x", retryable=True), 503, "worker_lost"),
        (Failed("1", "internal_error", "a path in /home and a secret"), 500, "internal_error"),
    ],
)
def test_what_a_backend_said(error: BackendError | Failed, status: int, code: str) -> None:
    found = backend_error(error)
    assert (found.status, found.code, found.param) == (status, code, error.param)
    assert "secret" not in found.message
    retryable = isinstance(error, BackendError)
    assert ("x-should-retry" in found.headers) is (code in ("worker_lost", "deadline_exceeded") and not retryable)


@pytest.mark.parametrize(
    ("error", "status", "code", "says"),
    [
        (NotFoundException(), 404, "not_found", "Unknown route: GET /x."),
        (MethodNotAllowedException(headers={"allow": "POST"}), 405, "method_not_allowed", "allowed: POST"),
        (ClientException("the library's own words"), 400, "invalid_request", "Bad Request."),
        (HTTPException(status_code=415), 415, "unsupported_media_type", "application/json"),
        (InternalServerException("the library's own words"), 500, "internal_error", "The server had an error"),
        (
            ValidationException("x", extra=[{"message": "Expected `int`, got `str`", "key": "limit"}]),
            400,
            "invalid_request",
            "'limit' is not valid: expected int, got str.",
        ),
    ],
)
def test_the_frameworks_errors_in_our_words(error: HTTPException, status: int, code: str, says: str) -> None:
    found = from_http_exception(error, "GET", "/x")
    assert (found.status, found.code) == (status, code)
    assert says in found.message
    assert "own words" not in found.message
