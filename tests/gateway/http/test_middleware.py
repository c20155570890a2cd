import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.asgi import Message, Receive, Scope, Send
from gateway.errors import ApiError
from gateway.http.endpoints import Endpoints
from gateway.http.middleware import BodyLimit, Guarded, RequestContext
from tests.gateway.idle_fleet import KEY, make_app, make_client, make_settings

ORIGIN = "https://app.example"


async def test_every_response_has_a_request_id(tmp_path: Path) -> None:
    app, _ = make_app(make_settings(tmp_path, key=KEY, cors_origins=[ORIGIN]))
    async with make_client(app) as client:
        preflight = {"origin": ORIGIN, "access-control-request-method": "POST"}
        answers = [
            await client.get("/health"),
            await client.get("/ready"),
            await client.get("/v1/models"),
            await client.get("/nothing"),
            await client.delete("/health"),
            await client.options("/v1/chat/completions", headers=preflight),
        ]
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert len(set(ids)) == len(ids)
    assert [answer.status_code for answer in answers] == [200, 503, 401, 401, 405, 204]


async def test_a_sane_id_of_the_caller_is_kept(tmp_path: Path) -> None:
    app, _ = make_app(make_settings(tmp_path))
    async with make_client(app) as client:
        kept = await client.get("/health", headers={"x-request-id": "trace-1.a:B_2"})
        assert kept.headers["x-request-id"] == "trace-1.a:B_2"
        for odd in ("a b", "x" * 129, "a\tb", "<script>"):
            made = await client.get("/health", headers={"x-request-id": odd})
            assert made.headers["x-request-id"].startswith("req_")


async def test_head_is_get_without_its_body(tmp_path: Path) -> None:
    app, _ = make_app(make_settings(tmp_path))
    async with make_client(app) as client:
        get, head = await client.get("/v1/models"), await client.head("/v1/models")
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == get.headers["content-length"]
        assert (await client.head("/v1/chat/completions")).status_code == 405


# --- host and origin --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1:1", "[::1]:8000", "LOCALHOST", "box.lan"])
async def test_this_machines_names_are_answered(tmp_path: Path, host: str) -> None:
    app, _ = make_app(make_settings(tmp_path, allowed_hosts=["box.lan"]))
    async with make_client(app, host=host) as client:
        assert (await client.get("/v1/models")).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "evil.example:8000", "10.0.0.1"])
async def test_other_names_are_not(tmp_path: Path, host: str) -> None:
    app, _ = make_app(make_settings(tmp_path))
    async with make_client(app, host=host) as client:
        for path in ("/v1/models", "/health", "/nothing"):
            response = await client.get(path)
            assert (response.status_code, response.json()["error"]["code"]) == (403, "host_not_allowed")


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost", 200),
        (ORIGIN, 200),
        ("https://evil.example", 403),
        ("http://localhost:3000", 403),
        ("http://app.example", 403),
        ("null", 403),
        ("http://[", 403),
    ],
)
async def test_a_page_from_elsewhere_does_not_drive_the_server(tmp_path: Path, origin: str, status: int) -> None:
    app, _ = make_app(make_settings(tmp_path, cors_origins=[ORIGIN]))
    async with make_client(app, origin=origin) as client:
        assert (await client.get("/v1/models")).status_code == status
        posted = await client.post("/v1/chat/completions", content=b"{}")
        assert (posted.status_code == 403) is (status == 403)


async def test_with_a_key_any_name_is_answered(tmp_path: Path) -> None:
    app, _ = make_app(make_settings(tmp_path, key=KEY))
    async with make_client(app, host="api.example", authorization=f"Bearer {KEY}") as client:
        assert (await client.get("/v1/models")).status_code == 200


# --- CORS -------------------------------------------------------------------------------------------------------------


async def test_a_preflight_needs_no_key_and_the_request_after_it_does(tmp_path: Path) -> None:
    app, _ = make_app(make_settings(tmp_path, key=KEY, cors_origins=[ORIGIN + "/"]))
    async with make_client(app, origin=ORIGIN) as client:
        asked = {
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,x-stainless-os",
            "access-control-request-private-network": "true",
        }
        preflight = await client.options("/v1/chat/completions", headers=asked)
        assert preflight.status_code == 204
        assert preflight.headers["access-control-allow-origin"] == ORIGIN
        assert "POST" in preflight.headers["access-control-allow-methods"]
        assert preflight.headers["access-control-allow-headers"] == "authorization,x-stainless-os"
        assert preflight.headers["access-control-allow-private-network"] == "true"

        refused = await client.get("/v1/models")
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == ORIGIN  # or the page could not read why

        answered = await client.get("/v1/models", headers={"authorization": f"Bearer {KEY}"})
        assert answered.status_code == 200
        assert answered.headers["access-control-allow-origin"] == ORIGIN
        assert "x-request-id" in answered.headers["access-control-expose-headers"]
        assert answered.headers["vary"] == "origin"


async def test_other_origins_get_no_cors_headers(tmp_path: Path) -> None:
    app, _ = make_app(make_settings(tmp_path, key=KEY, cors_origins=[ORIGIN]))
    asked = {"access-control-request-method": "POST"}
    async with make_client(app, origin="https://evil.example") as client:
        preflight = await client.options("/v1/chat/completions", headers=asked)
        assert preflight.status_code == 401
        assert "access-control-allow-origin" not in preflight.headers
    async with make_client(app) as client:
        assert "access-control-allow-origin" not in (await client.get("/health")).headers


async def test_any_origin(tmp_path: Path) -> None:
    app, _ = make_app(make_settings(tmp_path, key=KEY, cors_origins=["*"]))
    async with make_client(app, origin="https://anyone.example") as client:
        assert (await client.get("/health")).headers["access-control-allow-origin"] == "*"


# --- bodies -----------------------------------------------------------------------------------------------------------


async def test_a_body_over_the_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    app, _ = make_app(make_settings(tmp_path, max_body_bytes=1000))
    async with make_client(app) as client:
        response = await client.post("/v1/chat/completions", content=b" " * 1001)
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "payload_too_large"
        assert "1000" in response.json()["error"]["message"]


async def test_a_body_without_a_length_is_counted(tmp_path: Path) -> None:
    app, _ = make_app(make_settings(tmp_path, max_body_bytes=1000))

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(11):
            yield b" " * 100

    async with make_client(app) as client:
        sent = {"content-type": "application/json"}
        response = await client.post("/v1/chat/completions", content=chunks(), headers=sent)
        assert (response.status_code, response.json()["error"]["code"]) == (413, "payload_too_large")


async def read_body(scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body"):
        pass
    await receive()
    raise AssertionError("a client that stays sends nothing after its body")


def post(*messages: Message) -> tuple[Scope, Receive, Send, list[Message]]:
    """A request that sends `messages`, then stays."""
    pending = list(messages)
    sent: list[Message] = []

    async def receive() -> Message:
        if not pending:
            await asyncio.Event().wait()
        return pending.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"content-length", b"9")], "state": {}}
    return scope, receive, send, sent


async def test_a_client_that_leaves_during_its_body_is_no_bug() -> None:
    scope, receive, send, _ = post(
        {"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}
    )
    with pytest.raises(ApiError) as caught:
        await read_body(scope, BodyLimit(100, 100).bound(scope, receive), send)
    assert caught.value.status == 499


async def test_a_websocket_is_refused_before_it_is_accepted() -> None:
    def refuse(scope: Scope) -> None:
        raise ApiError(401, "no", code="invalid_api_key")

    _, receive, send, sent = post()
    app = RequestContext(Guarded(read_body, [refuse], BodyLimit(100, 100)), Endpoints([]))
    scope: Scope = {"type": "websocket", "path": "/", "headers": [], "state": {}, "subprotocols": []}
    await app(scope, receive, send)
    assert sent == [{"type": "websocket.close", "code": 4401, "reason": "invalid_api_key"}]

    sent.clear()
    await app({**scope, "extensions": {"websocket.http.response": {}}}, receive, send)
    assert [message["type"] for message in sent] == ["websocket.http.response.start", "websocket.http.response.body"]
    assert sent[0]["status"] == 401


async def test_a_bug_outside_of_all_handlers_has_the_same_form(caplog: pytest.LogCaptureFixture) -> None:
    def broken(scope: Scope) -> None:
        raise RuntimeError("secret")

    scope, receive, send, sent = post()
    await RequestContext(Guarded(read_body, [broken], BodyLimit(100, 100)), Endpoints([]))(scope, receive, send)
    assert [message.get("status") for message in sent] == [500, None]
    assert b'"code":"internal_error"' in sent[1]["body"]
    assert b"secret" not in sent[1]["body"]
    assert "RuntimeError: secret" in caplog.text
