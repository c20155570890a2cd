"""What every request passes before it is routed: id, arrival and endpoint, CORS, refusals, host and origin, key, body.

Plain ASGI, around Litestar's router: unknown routes, wrong methods and other spellings of a path go through it too.
"""

import logging
import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import lru_cache
from random import getrandbits
from time import monotonic
from urllib.parse import urlsplit

from gateway.asgi import App, Headers, Message, Receive, Scope, Send, header
from gateway.config.settings import Settings, is_loopback
from gateway.endpoint import Endpoint, FormBody
from gateway.errors import ApiError, client_closed, forbidden, internal_error, payload_too_large
from gateway.http.auth import Authentication, Keyring
from gateway.http.content_encoding import decoded, decoder
from gateway.http.endpoints import Endpoints
from gateway.http.request_log import log_request

logger = logging.getLogger("gateway")

EXPOSED_HEADERS = b"x-request-id, x-gateway-timing, retry-after, x-should-retry"
PREFLIGHT_MAX_AGE = b"600"  # seconds
REMEMBERED_HOSTS = 128

_SANE_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


Guard = Callable[[Scope], None]  # raises ApiError


def wrap(app: App, endpoints: Endpoints, settings: Settings) -> App:
    """The router behind everything in this module."""
    server = settings.server
    keyring = Keyring(settings.keys, server.metrics_sha256)
    guards: list[Guard] = [Authentication(keyring)]
    if keyring.empty:
        guards.insert(0, OriginGuard({server.host, *server.allowed_hosts}, server.cors_origins))
    app = Guarded(app, guards, BodyLimit(server.max_body_bytes, server.max_upload_bytes))
    if server.cors_origins:
        app = Cors(app, server.cors_origins)
    return RequestContext(app, endpoints)


class RequestContext:
    """Puts into the scope's state `request_id` (the caller's own where it is sane), `arrival` (monotonic seconds) and
    `endpoint` (None where no route has the path).

    HEAD is answered as GET without its body. Once a request has ended it is logged.
    """

    def __init__(self, app: App, endpoints: Endpoints) -> None:
        self._app = app
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = header(scope, b"x-request-id")
        request_id = given if given and _SANE_ID.fullmatch(given) else b"req_%032x" % getrandbits(128)
        state = scope["state"]
        state["arrival"] = monotonic()
        state["request_id"] = request_id.decode()
        method = scope["method"] if scope["type"] == "http" else "WS"
        head = method == "HEAD"
        state["endpoint"] = self._endpoints.find("GET" if head else method, scope["path"])
        stamp = (b"x-request-id", request_id)
        status = 0

        def stamped(message: Message) -> Awaitable[None]:
            nonlocal status
            if message["type"] in _STARTS:
                status = message.get("status", 101)
                message["headers"] = [*message.get("headers", ()), stamp]
            elif head and message["type"] == "http.response.body":
                message["body"] = b""
            return send(message)

        if head:
            scope = {**scope, "method": "GET"}  # the server's own scope stays HEAD
        try:
            await self._app(scope, receive, stamped)
        except Exception:
            if status:
                raise  # the server closes the connection
            logger.exception("%s failed outside of its handler", state["request_id"])
            await refuse(scope, stamped, internal_error())
        finally:
            log_request(scope, status or (500 if scope["type"] == "http" else 403))


_STARTS = frozenset({"http.response.start", "websocket.accept", "websocket.http.response.start"})


class Cors:
    """Answers preflights, which carry no key, and lets configured origins read responses, refusals included."""

    def __init__(self, app: App, origins: Collection[str]) -> None:
        self._app = app
        self._origins = frozenset(origin.rstrip("/").encode() for origin in origins)
        self._any = b"*" in self._origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = header(scope, b"origin") if scope["type"] == "http" else None
        if origin is None or not (self._any or origin in self._origins):
            await self._app(scope, receive, send)
            return
        allow = [(b"access-control-allow-origin", b"*" if self._any else origin), (b"vary", b"origin")]
        if scope["type"] == "http" and scope["method"] == "OPTIONS" and header(scope, b"access-control-request-method"):
            await _send_empty(send, [*allow, *_preflight(scope)])
            return
        allow.append((b"access-control-expose-headers", EXPOSED_HEADERS))

        def allowing(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *allow]
            return send(message)

        await self._app(scope, receive, allowing)


def _preflight(scope: Scope) -> Headers:
    headers = [
        (b"access-control-allow-methods", b"GET, HEAD, POST, DELETE, OPTIONS"),
        (b"access-control-allow-headers", header(scope, b"access-control-request-headers") or b"authorization"),
        (b"access-control-max-age", PREFLIGHT_MAX_AGE),
    ]
    if header(scope, b"access-control-request-private-network") == b"true":
        headers.append((b"access-control-allow-private-network", b"true"))
    return headers


async def _send_empty(send: Send, headers: Headers) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


class Guarded:
    """Asks every guard, in order, before the router. An ApiError that is raised outside the router is turned into its
    response; a WebSocket is refused before it is accepted."""

    def __init__(self, app: App, guards: Sequence[Guard], body: "BodyLimit") -> None:
        self._app = app
        self._guards = guards
        self._body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            for guard in self._guards:
                guard(scope)
            await self._app(scope, self._body.bound(scope, receive), send)
        except ApiError as error:
            await refuse(scope, send, error)


async def refuse(scope: Scope, send: Send, error: ApiError) -> None:
    """Answer with an error. A WebSocket must not have been accepted yet."""
    body = error.encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *((name.encode(), value.encode()) for name, value in error.headers.items()),
    ]
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": error.status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})
    elif "websocket.http.response" in (scope.get("extensions") or {}):
        await send({"type": "websocket.http.response.start", "status": error.status, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": body, "more_body": False})
    else:
        await send({"type": "websocket.close", "code": 4000 + error.status, "reason": error.code or ""})


class OriginGuard:
    """Where no key is asked for, a web page from elsewhere must not drive the server.

    Host has to be this machine's or a configured name (against DNS rebinding), Origin the server's own or a configured
    one.
    """

    def __init__(self, hosts: Collection[str], origins: Collection[str]) -> None:
        self._hosts = frozenset(host.lower() for host in hosts)
        self._origins = frozenset(origin.rstrip("/") for origin in origins)
        self._answers = lru_cache(REMEMBERED_HOSTS)(self._answers_to)

    def __call__(self, scope: Scope) -> None:
        host = header(scope, b"host") or b""
        if not self._answers(host):
            raise forbidden("This host name is not answered; add it to server.allowed_hosts.", "host_not_allowed")
        origin = header(scope, b"origin")
        if origin is not None and not self._allows(origin.decode("latin-1"), host.decode("latin-1").lower()):
            raise forbidden("This origin is not answered; add it to server.cors_origins.", "origin_not_allowed")

    def _answers_to(self, host: bytes) -> bool:
        try:
            name = urlsplit(f"//{host.decode('latin-1').lower()}").hostname
        except ValueError:  # no address in brackets
            return False
        return name is not None and (is_loopback(name) or name in self._hosts)

    def _allows(self, origin: str, host: str) -> bool:
        if origin in self._origins or "*" in self._origins:
            return True
        try:
            return urlsplit(origin).netloc.lower() == host
        except ValueError:  # no address in brackets
            return False


class BodyLimit:
    """Bounds a request's body, decompressed too, and tells a client that left during it (499) from a bug. How long it
    may take is the protocol's to watch."""

    def __init__(self, max_bytes: int, max_upload_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._max_upload_bytes = max_upload_bytes

    def bound(self, scope: Scope, receive: Receive) -> Receive:
        """`receive`, so bounded. Raises ApiError where the request itself says that its body is larger (413) or encoded
        in a way that is not known (415)."""
        endpoint: Endpoint | None = scope["state"].get("endpoint")
        uploads = endpoint is not None and isinstance(endpoint.body, FormBody)
        max_bytes = self._max_upload_bytes if uploads else self._max_bytes
        length = header(scope, b"content-length")
        if length is not None and length.isdigit() and int(length) > max_bytes:
            raise payload_too_large(max_bytes)
        if scope["type"] != "http" or (length is None and header(scope, b"transfer-encoding") is None):
            return receive
        receive = self._bounded(receive, max_bytes)
        encodings = [value for key, value in scope["headers"] if key == b"content-encoding"]
        wanted = decoder(b", ".join(encodings)) if encodings else None
        return decoded(receive, wanted, max_bytes) if wanted is not None else receive

    def _bounded(self, receive: Receive, max_bytes: int) -> Receive:
        received = 0
        complete = False

        async def bounded() -> Message:
            nonlocal received, complete
            message = await receive()
            if complete:
                return message
            if message["type"] == "http.disconnect":
                raise client_closed()
            received += len(message["body"])
            complete = not message.get("more_body", False)
            if received > max_bytes:
                raise payload_too_large(max_bytes)
            return message

        return bounded
