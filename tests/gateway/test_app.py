import asyncio
import json
import re
from pathlib import Path

import httpx
import pytest
from litestar.routes import HTTPRoute

from gateway.config.settings import Settings
from gateway.requests.fleet import Fleet
from metrics.registry import Registry
from tests.gateway.idle_fleet import IdleFleet, make_app, make_client, make_settings
from tests.servers import gateway


def idle_fleet(settings: Settings, registry: Registry) -> Fleet:
    return IdleFleet(settings, registry)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/nothing", None, 404, "not_found"),
        ("GET", "/v1/chat", None, 404, "not_found"),
        ("POST", "/v1/audio/speech", b"{}", 404, "not_found"),
        ("GET", "/v1/chat/completions", None, 405, "method_not_allowed"),
        ("DELETE", "/v1/models/first", None, 405, "method_not_allowed"),
        ("POST", "/v1/chat/completions", b"{", 400, "invalid_json"),
        ("POST", "/v1/chat/completions", b'{"messages": []}', 400, "invalid_request"),
        ("POST", "/v1/chat/completions", b'{"model": "nope", "messages": [{"role": "user"}]}', 404, "model_not_found"),
        ("POST", "/v1/completions", b'{"model": "nope", "prompt": "x"}', 404, "model_not_found"),
    ],
)
async def test_every_error_has_openais_body(
    tmp_path: Path, method: str, path: str, body: bytes | None, status: int, code: str
) -> None:
    app, _ = make_app(make_settings(tmp_path))
    async with make_client(app) as client:
        response = await client.request(method, path, content=body, headers={"content-type": "application/json"})
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    assert response.json().keys() == {"error"}
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["code"], error["type"]) == (code, "invalid_request_error")
    if status == 405:
        assert response.headers["allow"]


async def test_a_body_that_is_no_json_by_its_type_is_415(tmp_path: Path) -> None:
    app, _ = make_app(make_settings(tmp_path))
    async with make_client(app) as client:
        response = await client.post("/v1/chat/completions", content=b"{}", headers={"content-type": "text/plain"})
    assert (response.status_code, response.json()["error"]["code"]) == (415, "unsupported_media_type")


async def test_a_bug_is_a_500_that_tells_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app, fleet = make_app(make_settings(tmp_path))
    monkeypatch.setattr(fleet, "readiness", lambda: {}["/home/secret"])
    async with make_client(app, **{"x-request-id": "trace-7"}) as client:
        response = await client.get("/ready")
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"
    assert "secret" not in response.text
    assert "trace-7" in caplog.text
    assert "KeyError" in caplog.text


async def test_a_bug_on_the_short_way_tells_nothing_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app, _ = make_app(make_settings(tmp_path))
    monkeypatch.setattr("gateway.api.text.handler.decode_texts", lambda *_: {}["/home/secret"])
    body = {"model": "first", "messages": [{"role": "user", "content": "x"}]}
    async with make_client(app, **{"x-request-id": "trace-8"}) as client:
        response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"
    assert response.headers["x-request-id"] == "trace-8"
    assert "secret" not in response.text
    assert "trace-8" in caplog.text
    assert "KeyError" in caplog.text


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_the_short_way_is_that_of_one_method_and_spelling(tmp_path: Path, path: str) -> None:
    """All else about these routes is the router's to answer."""
    app, _ = make_app(make_settings(tmp_path))
    async with make_client(app) as client:
        answers = [await client.post(path, json={}), await client.post(path + "/", json={}), await client.get(path)]
        allowed = (await client.options(path)).headers["allow"]
    assert [answer.status_code for answer in answers] == [400, 400, 405]
    assert answers[0].json() == answers[1].json()
    assert answers[0].headers.keys() == answers[1].headers.keys()
    assert allowed == "OPTIONS, POST"


async def test_the_schema_names_every_route_and_field(tmp_path: Path) -> None:
    app, _ = make_app(make_settings(tmp_path))
    async with make_client(app) as client:
        schema = (await client.get("/schema/openapi.json")).json()
        page = (await client.get("/schema")).text
    served = {route.path for route in app.routes if isinstance(route, HTTPRoute) and "/schema" not in route.path}
    assert {re.sub(r":\w+", "", path) for path in served} == set(schema["paths"])
    chat = schema["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    fields = schema["components"]["schemas"][chat["$ref"].rsplit("/", 1)[1]]["properties"]
    assert {"messages", "temperature", "stream", "logit_bias", "max_completion_tokens", "user"} <= fields.keys()
    edit = schema["paths"]["/v1/images/edits"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    form = schema["components"]["schemas"][edit["$ref"].rsplit("/", 1)[1]]
    assert {"image", "mask", "prompt", "strength"} <= form["properties"].keys()
    assert form["properties"]["image"]["format"] == "binary"
    assert set(form["required"]) == {"image", "prompt"}
    for path in schema["paths"]:
        assert path in page
    assert "negative_prompt" in page
    assert "logit_bias" in page
    assert "src=" not in page  # nothing from elsewhere
    assert page.count("http") == 0


# --- on real sockets --------------------------------------------------------------------------------------------------


async def exchange(address: tuple[str, int], *parts: bytes) -> bytes:
    """Send the parts with a pause between, and read until the server closes."""
    reader, writer = await asyncio.open_connection(*address)
    for part in parts:
        writer.write(part)
        await writer.drain()
        await asyncio.sleep(0.02)
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    return answer


def parse(answer: bytes) -> tuple[int, dict[str, object]]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


async def test_what_is_no_http_gets_the_same_form_of_error(tmp_path: Path) -> None:
    async with gateway(make_settings(tmp_path, port=0), idle_fleet) as running:
        for bad in (b"GARBAGE\r\n\r\n", "GET /é HTTP/1.1\r\nhost: localhost\r\n\r\n".encode("latin-1")):
            status, body = parse(await exchange(running.address, bad))
            assert status == 400
            assert body.keys() == {"error"}


async def test_a_head_that_is_too_large_is_refused(tmp_path: Path) -> None:
    async with gateway(make_settings(tmp_path, port=0), idle_fleet) as running:
        head = b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + b"x-filler: " + b"a" * 70_000
        status, body = parse(await exchange(running.address, head[:30_000], head[30_000:]))
        assert status == 431
        assert body.keys() == {"error"}


@pytest.mark.parametrize("sent", [b"", b"GET /health HTT", b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: y"])
async def test_a_head_that_does_not_end_is_not_waited_for(tmp_path: Path, sent: bytes) -> None:
    async with gateway(make_settings(tmp_path, port=0, header_timeout_s=0.1), idle_fleet) as running:
        assert await exchange(running.address, sent) == b""


async def test_the_head_timer_stops_with_the_head(tmp_path: Path) -> None:
    async with gateway(make_settings(tmp_path, port=0, header_timeout_s=0.1), idle_fleet) as running:
        reader, writer = await asyncio.open_connection(*running.address)
        for _ in range(3):
            writer.write(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            assert await reader.readexactly(15) == b'{"status":"ok"}'
            await asyncio.sleep(0.12)  # idle between two requests is what keep_alive_s is for
        writer.close()


async def test_a_body_that_does_not_come_is_408(tmp_path: Path) -> None:
    async with gateway(make_settings(tmp_path, port=0, body_timeout_s=0.1), idle_fleet) as running:
        head = (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"content-length: 100\r\n\r\n{"
        )
        status, body = parse(await exchange(running.address, head))
        assert status == 408
        assert body["error"]["code"] == "request_timeout"  # type: ignore[index]


async def test_a_body_that_comes_slowly_but_steadily_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.http.protocol.MIN_BODY_RATE", 10)
    body = b'{"model": "nope", "messages": [{"role": "user", "content": "x"}]}'
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    )
    async with gateway(make_settings(tmp_path, port=0, body_timeout_s=0.1), idle_fleet) as running:
        parts = [body[i : i + 5] for i in range(0, len(body), 5)]
        status, _ = parse(await exchange(running.address, head, *parts))
        assert status == 404


async def test_over_the_limit_the_connection_is_closed(tmp_path: Path) -> None:
    async with gateway(make_settings(tmp_path, port=0, max_body_bytes=10), idle_fleet) as running:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 11\r\n\r\n"
        status, body = parse(await exchange(running.address, head))
        assert status == 413
        assert body["error"]["code"] == "payload_too_large"  # type: ignore[index]


async def test_the_lifespan_opens_and_removes_the_spool(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    async with gateway(make_settings(tmp_path, port=0), idle_fleet) as running:
        assert len([folder for folder in spool.iterdir() if folder.is_dir()]) == 1
        async with httpx.AsyncClient(base_url=running.url) as client:
            assert (await client.get("/health")).status_code == 200
    assert list(spool.iterdir()) == []


async def test_an_upgraded_connection_is_no_longer_watched(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with gateway(make_settings(tmp_path, port=0, body_timeout_s=0.1), idle_fleet) as running:
        head = (
            b"GET /nothing HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
            b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        answer = await exchange(running.address, head)
        assert answer.startswith((b"HTTP/1.1 403", b"HTTP/1.1 404"))
        await asyncio.sleep(0.15)
    assert "Exception in callback" not in caplog.text
