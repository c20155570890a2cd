"""One line for each request, when it has ended."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from gateway.uploads.gallery import Gallery
from pipelines.logs import fields
from tests.gateway.idle_fleet import KEY, IdleFleet, make_app, make_client, make_settings
from tests.gateway.scripted import ScriptedCall
from tests.gateway.scripted_app import CHAT, AppHost, ScriptedApp, chat
from tests.servers import gateway, until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(autouse=True)
def verbose(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, Any]]]:
    """Of requests: what was asked, and the rest of the line."""
    return [
        (record.getMessage(), dict(fields(record))) for record in caplog.records if record.name == "gateway.request"
    ]


async def one(caplog: pytest.LogCaptureFixture) -> tuple[str, dict[str, Any]]:
    """The one line; it is written after the answer has left."""
    await until(lambda: bool(lines(caplog)))
    (line,) = lines(caplog)
    return line


def answered(call: ScriptedCall) -> None:
    call.accept()
    call.text("fine")
    call.end("length")


async def test_what_a_model_did_is_in_the_line(server: AppHost, caplog: pytest.LogCaptureFixture) -> None:
    it: ScriptedApp = server.app()
    it.backend.answer = answered
    await it.chat(headers={"x-request-id": "trace-1"})
    asked, line = await one(caplog)
    assert asked == "POST /v1/chat/completions"
    assert line.pop("ms") > 0
    assert line == {
        "id": "trace-1",
        "status": 200,
        "model": "scripted",
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "outcome": "length",
    }


@pytest.mark.parametrize(
    ("body", "status", "model"),
    [({"model": "nobody"}, 404, None), ({"n": 0}, 400, None), ({"temperature": "x"}, 400, None)],
)
async def test_a_request_that_is_refused(
    server: AppHost, caplog: pytest.LogCaptureFixture, body: dict[str, Any], status: int, model: str | None
) -> None:
    it = server.app()
    await it.client.post(CHAT, json=chat() | body)
    _, line = await one(caplog)
    assert (line["status"], line.get("model")) == (status, model)


async def test_a_model_that_fails_and_a_client_that_leaves(server: AppHost, caplog: pytest.LogCaptureFixture) -> None:
    it = server.app()
    it.backend.answer = lambda call: call.fail("context_length_exceeded")
    await it.chat()
    _, line = await one(caplog)
    assert (line["status"], line["model"], line["outcome"]) == (400, "scripted", "context_length_exceeded")
    caplog.clear()

    it = server.app()
    asking = asyncio.create_task(it.chat())
    await it.backend.opened()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    _, line = await one(caplog)
    assert (line["status"], line["outcome"]) == (499, "client_left")


async def test_who_asked_and_what_comes_every_few_seconds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    app, _ = make_app(make_settings(tmp_path, key=KEY))
    async with make_client(app) as client:
        for path in ("/health", "/ready", "/ready/first", "/metrics", "/v1/models", "/v1/images/files/secret.png"):
            await client.get(path, headers={"authorization": f"Bearer {KEY}"})
        await client.get("/v1/models")
    found = [
        (record.getMessage(), record.levelname, fields(record)["status"], fields(record).get("key"))
        for record in caplog.records
        if record.name == "gateway.request"
    ]
    assert found == [
        ("GET /health", "DEBUG", 200, None),
        ("GET /ready", "DEBUG", 503, None),
        ("GET /ready/first", "DEBUG", 503, None),
        ("GET /metrics", "DEBUG", 200, "test"),
        ("GET /v1/models", "INFO", 200, "test"),
        ("GET /v1/images/files/…", "INFO", 404, None),
        ("GET /v1/models", "INFO", 401, None),
    ]


@pytest.mark.parametrize("path", ["//v1/images/files/", "/v1//images///files//", "/v1/images/%66iles/"])
async def test_a_picture_s_name_is_in_no_line_however_its_path_is_spelt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    def find(gallery: Gallery, name: str) -> None:
        raise RuntimeError

    monkeypatch.setattr(Gallery, "find", find)
    app, _ = make_app(make_settings(tmp_path))
    async with make_client(app) as client:
        await client.get(f"http://localhost{path}xyzzy.png")
    said = [record.getMessage() for record in caplog.records if record.name.startswith("gateway")]
    assert [each.partition("…")[0] for each in said] == ["GET /v1/images/files/"] * 2  # of the bug, and of the request
    assert "xyzzy" not in repr(said)


async def test_a_body_that_did_not_come(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with gateway(make_settings(tmp_path, port=0, body_timeout_s=0.1), IdleFleet) as running:
        reader, writer = await asyncio.open_connection(*running.address)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{")
        assert (await reader.read()).startswith(b"HTTP/1.1 408")
        writer.close()
        _, line = await one(caplog)
    assert line["status"] == 408


async def test_what_clients_say_is_in_no_line(server: AppHost, caplog: pytest.LogCaptureFixture) -> None:
    """At any level, from any logger of ours."""
    it = server.app()
    it.backend.answer = answered
    secret = "xyzzy"
    keyed = {"authorization": f"Bearer {secret}"}
    await it.chat(secret, headers=keyed)
    await it.chat(secret, stream=True, user=secret)
    await it.client.post(CHAT, json=chat(secret, **{secret: 1}))
    await it.client.post(CHAT, content=secret.encode(), headers={"content-type": "application/json"})
    await it.client.get("/v1/models", params={"key": secret})
    await it.client.get("/v1/images/files/" + secret + ".png")
    await it.client.post("/v1/audio/transcriptions", files={"file": (secret, b"")}, data={"prompt": secret})
    await until(lambda: len(lines(caplog)) == 7)
    ours = [record for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))]
    assert secret not in repr([(record.getMessage(), fields(record)) for record in ours])
