"""What every model endpoint reads from a request beside its body."""

from time import monotonic
from typing import cast

from litestar import Request, WebSocket
from litestar.datastructures import State

from gateway.asgi import Receive, Scope, header
from gateway.config.settings import ModelSettings
from gateway.endpoint import Endpoint
from gateway.errors import ApiError, bad_request, client_closed, unsupported_media_type
from gateway.http.auth import Principal
from gateway.requests.dispatch import Dispatcher
from gateway.requests.exchange import Terms
from gateway.uploads.images import ImageReader
from metrics.timeline import Timeline
from pipelines.messages.frames import Priority

HttpRequest = Request[object, object, State]
Connection = HttpRequest | WebSocket[object, object, State]

PRIORITY = "x-gateway-priority"
TIMEOUT = "x-gateway-timeout-ms"


async def json_body(request: HttpRequest) -> bytes:
    """The whole body. Raises ApiError (415, and what the body's limits raise)."""
    content_type = _header(request, "content-type")
    if content_type is not None and content_type.partition(b";")[0].strip().lower() != b"application/json":
        raise unsupported_media_type("application/json")
    # Read without Litestar's stream of chunks: it is nearly always one message.
    receive = cast(Receive, request.receive)
    parts: list[bytes] = []
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise client_closed()
        parts.append(message["body"])
        more = message.get("more_body", False)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def dispatcher(request: HttpRequest) -> Dispatcher:
    """The gateway's, without Litestar's injection: that costs a request more than all the middleware."""
    found: Dispatcher = request.app.state.dispatcher
    return found


def image_reader(request: HttpRequest) -> ImageReader:
    """The gateway's."""
    found: ImageReader = request.app.state.images
    return found


def kind(connection: Connection) -> str:
    """Of the model that the connection's endpoint needs, as it declares."""
    endpoint: Endpoint = connection.scope["state"]["endpoint"]
    assert endpoint.kind is not None
    return endpoint.kind


def terms(connection: Connection, settings: ModelSettings) -> Terms:
    """From the key and the two headers. Raises ApiError (400)."""
    principal: Principal = connection.scope["state"]["principal"]
    return Terms(_timeout(connection, settings), _priority(connection, principal), principal.tenant)


def timeline(request: HttpRequest) -> Timeline:
    arrival: float = request.scope["state"].get("arrival") or monotonic()
    return Timeline(arrival)


def _header(connection: Connection, name: str) -> bytes | None:
    # Litestar's own multi-dict of headers would be built for each request; these are looked up once.
    return header(cast(Scope, connection.scope), name.encode())


def _priority(connection: Connection, principal: Principal) -> Priority:
    asked = _header(connection, PRIORITY)
    match asked:
        case None:
            return principal.priority
        case b"interactive":
            return principal.priority  # capped by the key's
        case b"batch":
            return "batch"
        case _:
            raise _bad_header(PRIORITY, "'interactive' or 'batch'")


def _timeout(connection: Connection, settings: ModelSettings) -> float:
    asked = _header(connection, TIMEOUT)
    if asked is None:
        return settings.timeout_s
    if not (asked.isdigit() and len(asked) <= 12 and int(asked) > 0):
        raise _bad_header(TIMEOUT, "a positive whole number of milliseconds")
    return min(int(asked) / 1e3, settings.timeout_s)


def _bad_header(name: str, legal: str) -> ApiError:
    return bad_request(name, f"The header {name!r} must be {legal}.")
