"""One reply without sockets: what is sent, message by message."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.api.answer import Head
from gateway.api.text.answer import Form, TextStream
from gateway.api.text.chat_answer import ChatView
from gateway.requests import dispatch
from gateway.requests.dispatch import Reply
from gateway.requests.exchange import Exchange, Job, Terms
from gateway.uploads.spool import Spool
from metrics.timeline import Timeline
from pipelines.messages.frames import Failed
from pipelines.messages.text import ChatPrompt, ChoiceDone, TextRequest
from tests.gateway.scripted import SETTINGS, ScriptedBackend, ScriptedFleet
from tests.gateway.scripted_app import RecordingRegistry, events
from tests.servers import until


class Connection:
    """An ASGI connection whose client never leaves."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    async def receive(self) -> dict[str, Any]:
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    async def send(self, message: Any) -> None:
        self.sent.append(dict(message))

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.sent if message["type"] == "http.response.body"]


def reply(backend: ScriptedBackend, registry: RecordingRegistry, timeout: float = 10.0, **job: Any) -> Reply:
    route = ScriptedFleet(registry).serve(SETTINGS, [backend])
    request = TextRequest(prompts=[ChatPrompt([])])
    exchange = Exchange(Job("id", route, request, 1, Terms(timeout), **job), Timeline(), registry)
    return Reply(exchange, TextStream(ChatView(Head("id", 0, "m", "fp"), Form(1))))


async def test_events_that_are_here_leave_in_one_write() -> None:
    connection, registry = Connection(), RecordingRegistry()
    backend = ScriptedBackend(answer=lambda call: (call.text("Hello"), call.end())[0])
    await reply(backend, registry)({"state": {}}, connection.receive, connection.send)
    assert [message["type"] for message in connection.sent] == ["http.response.start", "http.response.body"]
    assert len(events(connection.bodies[0].decode())) == 2
    assert registry.outcomes == ["stop"]


async def test_what_came_before_a_failure_is_not_lost() -> None:
    connection, registry = Connection(), RecordingRegistry()
    task = asyncio.create_task(
        reply(backend := ScriptedBackend(), registry)({"state": {}}, connection.receive, connection.send)
    )
    call = await backend.opened()
    call.text("a")
    await until(lambda: bool(connection.bodies))
    call.say(call.delta("b"), Failed("id", "internal_error", "secret"))
    await task
    assert b'"content":"b"' in connection.bodies[1]
    assert b'"error"' in connection.bodies[-1]
    assert b"secret" not in b"".join(connection.bodies)
    assert connection.sent[-1]["more_body"] is False


async def test_the_files_of_a_request_end_with_it(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 1000)
    spool.open()
    file = spool.create()
    await file.write(b"0123")
    path = await file.finish()
    backend = ScriptedBackend(answer=lambda call: call.end())
    await reply(backend, RecordingRegistry(), files=[file])(
        {"state": {}}, (connection := Connection()).receive, connection.send
    )
    assert not path.exists()
    assert spool.used == 0
    spool.close()


async def test_a_server_that_gives_up_closes_its_requests() -> None:
    connection, registry = Connection(), RecordingRegistry()
    task = asyncio.create_task(
        reply(backend := ScriptedBackend(), registry)({"state": {}}, connection.receive, connection.send)
    )
    call = await backend.opened()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert call.aborted
    assert registry.outcomes == ["cancelled"]


async def test_a_client_that_takes_nothing_any_more_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its deadline passes in a write; the error frame is not waited for without end either."""
    monkeypatch.setattr(dispatch, "LAST_WORDS_S", 0.02)
    registry = RecordingRegistry()
    bodies: list[bytes] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            bodies.append(message["body"])
            await asyncio.get_running_loop().create_future()

    backend = ScriptedBackend(answer=lambda call: call.text("x"))
    async with asyncio.timeout(5):
        await reply(backend, registry, timeout=0.05)({"state": {}}, Connection().receive, send)
    assert len(bodies) == 2
    assert b"deadline_exceeded" in bodies[1]
    assert registry.outcomes == ["deadline_exceeded"]
    assert backend.calls[0].aborted


async def test_a_client_that_leaves_with_the_last_bytes_has_its_answer() -> None:
    """The server reports the end of a response to whoever still listens as a disconnect."""
    registry = RecordingRegistry()
    over = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await over.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if not message.get("more_body", True):
            over.set()
            for _ in range(5):
                await asyncio.sleep(0)

    backend = ScriptedBackend(answer=lambda call: call.end())
    await reply(backend, registry)({"state": {}}, receive, send)
    assert registry.outcomes == ["stop"]


async def test_the_outcome_is_the_finish_reason() -> None:
    connection, registry = Connection(), RecordingRegistry()
    backend = ScriptedBackend(answer=lambda call: call.say(ChoiceDone("id", 0, "length"), call.done()))
    await reply(backend, registry)({"state": {}}, connection.receive, connection.send)
    assert registry.outcomes == ["length"]
    assert registry.closed[0].cached_tokens == 1
