"""Every error leaves as OpenAI's body, `{"error": {message, type, param, code}}`, whatever raised it."""

import logging
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import TypeVar, cast

import msgspec
from litestar import Request, Response
from litestar.datastructures import State
from litestar.exceptions import HTTPException, ValidationException
from litestar.types import ExceptionHandlersMap
from msgspec import Struct

from gateway.asgi import Scope
from gateway.backends.base import BackendError
from gateway.config.validation import Problem, explain
from gateway.paths import logged
from pipelines.messages.frames import ErrorCode, Failed

logger = logging.getLogger("gateway")

T = TypeVar("T")

CLIENT_CLOSED_REQUEST = 499


class ErrorDetail(Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(Struct, frozen=True):
    error: ErrorDetail


class ApiError(Exception):
    """An error as the caller sees it. `headers` may hold Retry-After, x-should-retry and the like."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str | None = None,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type or _type(status)
        self.code = code
        self.param = param
        self.headers = dict(headers or {})

    @property
    def body(self) -> ErrorBody:
        return ErrorBody(ErrorDetail(self.message, self.type, self.param, self.code))

    def encode(self) -> bytes:
        """The JSON body, also the payload of an error frame in a stream."""
        return _encoder.encode(self.body)


_encoder = msgspec.json.Encoder()


def _type(status: int) -> str:
    match status:
        case 401:
            return "authentication_error"
        case 403:
            return "permission_error"
        case 429:
            return "rate_limit_error"
        case _:
            return "server_error" if status >= 500 else "invalid_request_error"


# --- what can go wrong ------------------------------------------------------------------------------------------------


def bad_request(param: str | None, message: str, *, code: str = "invalid_request") -> ApiError:
    """400. `message` names the field and its legal values."""
    return ApiError(400, message, code=code, param=param)


def unauthorized(message: str) -> ApiError:
    return ApiError(401, message, code="invalid_api_key", headers={"www-authenticate": "Bearer"})


def forbidden(message: str, code: str) -> ApiError:
    return ApiError(403, message, code=code)


def model_not_found(name: str, known: Iterable[str], *, param: str | None = "model") -> ApiError:
    listed = ", ".join(repr(each) for each in sorted(known)) or "none"
    return ApiError(404, f"Model {name!r} is not served here. Known: {listed}.", code="model_not_found", param=param)


def no_model(kind: str) -> ApiError:
    """404 for a request that names no model, where none of the kind that it needs is served."""
    return ApiError(404, f"No model for {kind} is served here.", code="model_not_found", param="model")


def not_found(message: str) -> ApiError:
    return ApiError(404, message, code="not_found")


def spool_full(max_bytes: int, what: str) -> ApiError:
    """507: `what` finds no room on the server."""
    message = f"The server has no room for {what}: it keeps {max_bytes} bytes."
    return ApiError(507, message, code="spool_full", headers={"x-should-retry": "false"})


def request_timeout(seconds: float) -> ApiError:
    """408: the client did not send its body in time."""
    message = f"The request body did not arrive within {seconds:g} s."
    return ApiError(408, message, code="request_timeout")


def payload_too_large(limit: int) -> ApiError:
    message = f"The request body is larger than the {limit} bytes that are accepted."
    return ApiError(413, message, code="payload_too_large")


def headers_too_large(limit: int) -> ApiError:
    """431, for what is behind a body, too."""
    return ApiError(431, f"The request's headers are larger than {limit} bytes.", code="headers_too_large")


def too_many_pipelined(limit: int) -> ApiError:
    return ApiError(400, f"More than {limit} requests are waiting on one connection.", code="too_many_pipelined")


def unsupported_media_type(expected: str) -> ApiError:
    return ApiError(415, f"The request body must be {expected}.", code="unsupported_media_type")


def overloaded(retry_after: int) -> ApiError:
    """429: the model's slots and its queue are full."""
    message = f"The model is at capacity and its queue is full. Try again in {retry_after} s."
    return ApiError(429, message, code="overloaded", headers={"retry-after": str(max(1, retry_after))})


def client_closed() -> ApiError:
    """499: nobody reads it; it is what the logs and metrics count."""
    return ApiError(CLIENT_CLOSED_REQUEST, "The client closed the connection.", code="client_closed_request")


def internal_error() -> ApiError:
    return ApiError(500, "The server had an error while processing the request.", code="internal_error")


def model_unavailable(model: str, reason: str | None = None, *, retry_after: int = 5) -> ApiError:
    """503: no replica can take the request now."""
    message = f"Model {model!r} is not available now" + (f": {reason}" if reason else "") + "."
    return ApiError(503, message, code="model_unavailable", headers={"retry-after": str(max(1, retry_after))})


def worker_lost(*, began: bool, retry_after: int = 5) -> ApiError:
    """503: the process that ran it is gone. Where work had begun, clients do not repeat it by themselves."""
    headers = {"retry-after": str(max(1, retry_after))}
    if began:
        headers["x-should-retry"] = "false"
    return ApiError(503, "The process that ran the request is gone.", code="worker_lost", headers=headers)


def deadline_exceeded(message: str = "The request's deadline has passed.") -> ApiError:
    """504, never repeated by clients by themselves."""
    return ApiError(504, message, code="deadline_exceeded", headers={"x-should-retry": "false"})


def backend_error(error: BackendError | Failed) -> ApiError:
    """What a backend said, as the caller sees it."""
    retryable = error.retryable if isinstance(error, BackendError) else False
    code: ErrorCode = error.code
    match code:
        case "invalid_request" | "context_length_exceeded":
            return bad_request(error.param, error.message, code=code)
        case "cancelled":
            return client_closed()
        case "deadline_exceeded":
            return deadline_exceeded()
        case "worker_lost":
            return worker_lost(began=not retryable)
        case "model_unavailable":
            return ApiError(503, error.message, code=code, headers={"x-should-retry": "false"})
        case "invalid_output":
            return ApiError(500, error.message, code=code, headers={"x-should-retry": "false"})
        case "internal_error":
            return internal_error()


def validation_error(error: msgspec.ValidationError, of: object) -> ApiError:
    """A 400 for a document that is not of the type `of`."""
    return _field_error(explain(error, of))


def malformed_json(reason: str) -> ApiError:
    reason = reason.removeprefix("JSON is malformed: ")
    return bad_request(None, f"The request body is not valid JSON: {reason}.", code="invalid_json")


def _field_error(problem: Problem) -> ApiError:
    if not problem.path:
        return bad_request(None, f"Invalid request body: {problem.message}.")
    code = "unknown_parameter" if problem.unknown else "invalid_request"
    return bad_request(problem.path, f"{problem.path!r} {_verb(problem.message)}", code=code)


def _verb(message: str) -> str:
    stop = "" if message.endswith("?") else "."
    return f"{message}{stop}" if message.startswith("is ") else f"is not valid: {message}{stop}"


def decode_body(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """A JSON body as the decoder's type, strictly. Raises ApiError (400) naming the field, its indices included."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise validation_error(error, decoder.type) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise malformed_json(str(error)) from None
    except RecursionError:
        raise malformed_json("it is nested too deeply") from None


# --- Litestar's handlers ----------------------------------------------------------------------------------------------


Connection = Request[object, object, State]


def respond(error: ApiError) -> Response[bytes]:
    return Response(error.encode(), status_code=error.status, media_type="application/json", headers=error.headers)


def from_http_exception(error: HTTPException, method: str, path: str) -> ApiError:
    """An error of the framework, in our words: its own are not passed through."""
    match error.status_code:
        case 404:
            return ApiError(404, f"Unknown route: {method} {path}.", code="not_found")
        case 405:
            allowed = (error.headers or {}).get("allow", "")
            message = f"{method} is not allowed on {path}; allowed: {allowed}."
            return ApiError(405, message, code="method_not_allowed", headers=error.headers)
        case 415:
            return unsupported_media_type("application/json")
    if isinstance(error, ValidationException) and isinstance(error.extra, list) and error.extra:
        first = error.extra[0]
        if isinstance(first, dict):
            message = str(first.get("message", "")).replace("`", "") or "not valid"
            return _field_error(Problem(str(first.get("key", "")), message[:1].lower() + message[1:]))
    if error.status_code >= 500:
        return internal_error()
    return ApiError(error.status_code, f"{HTTPStatus(error.status_code).phrase}.", code="invalid_request")


def _on_api_error(_: Connection, error: ApiError) -> Response[bytes]:
    return respond(error)


def _on_backend_error(_: Connection, error: BackendError) -> Response[bytes]:
    return respond(backend_error(error))


def _on_http_exception(request: Connection, error: HTTPException) -> Response[bytes]:
    if error.status_code >= 500:
        return _on_bug(request, error)
    return respond(from_http_exception(error, request.method, request.url.path))


def _on_bug(request: Connection, error: Exception) -> Response[bytes]:
    request_id = request.scope["state"].get("request_id", "")
    logger.error("%s %s failed (%s)", request.method, logged(cast(Scope, request.scope)), request_id, exc_info=error)
    return respond(internal_error())


def exception_handlers() -> ExceptionHandlersMap:
    """For `Litestar(exception_handlers=…)`."""
    return {
        ApiError: _on_api_error,
        BackendError: _on_backend_error,
        HTTPException: _on_http_exception,
        Exception: _on_bug,
    }
