"""How the ends of a request are told over HTTP. What holds for every request is in test_life.py."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from gateway.api.text.answer import TextAnswer
from gateway.backends.base import State
from gateway.requests import dispatch
from tests.gateway.scripted import ScriptedBackend
from tests.gateway.scripted_app import CHAT, AppHost, ScriptedApp, chat
from tests.servers import until

BOTH = pytest.mark.parametrize("stream", [False, True])


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module")
async def one(server: AppHost) -> AsyncIterator[ScriptedApp]:
    """One slot and a queue of two."""
    it = server.app(ScriptedBackend(slots=1), max_queue=2)
    yield it
    # Whatever a test did: nothing is left behind.
    for call in it.backend.calls:
        if not call.session.ended.done():
            call.fail("cancelled")
    await until(lambda: it.admission.used == 0 and it.admission.waiting == 0)
    assert all(timeline.closed is not None for timeline in it.registry.closed)


@asynccontextmanager
async def raw_request(
    it: ScriptedApp, body: dict[str, Any]
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A client on its own connection, which leaves at the end of the block."""
    data = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection(*it.gateway.address)
    writer.write(
        b"POST %s HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % (CHAT.encode(), len(data)) + data
    )
    try:
        yield reader, writer
    finally:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


@BOTH
async def test_no_status_is_sent_before_the_first_output(one: ScriptedApp, stream: bool) -> None:
    """So a prompt that turns out too long is a 400, streamed or not."""
    asked = asyncio.create_task(one.chat(stream=stream))
    call = await one.backend.opened()
    call.accept()
    await asyncio.sleep(0.02)
    assert not asked.done()
    call.fail("context_length_exceeded", "The prompt has 9 tokens, the model takes 8.", "messages")
    answer = await asked
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert answer.json()["error"]["param"] == "messages"
    assert one.registry.outcomes == ["context_length_exceeded"]


@BOTH
async def test_a_worker_lost_before_any_output_may_be_tried_again(one: ScriptedApp, stream: bool) -> None:
    asked = asyncio.create_task(one.chat(stream=stream))
    call = await one.backend.opened()
    call.accept()
    call.fail("worker_lost")
    answer = await asked
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "worker_lost"
    assert int(answer.headers["retry-after"]) >= 1
    assert "x-should-retry" not in answer.headers


async def test_a_worker_lost_after_work_began_is_not_tried_again_by_itself(one: ScriptedApp) -> None:
    asked = asyncio.create_task(one.chat())
    call = await one.backend.opened()
    call.text("Hel")
    await asyncio.sleep(0.02)
    call.fail("worker_lost")
    answer = await asked
    assert answer.status_code == 503
    assert answer.headers["x-should-retry"] == "false"


async def test_a_late_failure_is_an_error_frame_and_no_clean_end(one: ScriptedApp) -> None:
    one.backend.answer = lambda call: call.text("Hel")
    async with one.client.stream("POST", CHAT, json=chat(stream=True)) as answer:
        assert answer.status_code == 200
        lines = answer.aiter_lines()
        assert "Hel" in await anext(lines)
        one.backend.calls[0].fail("worker_lost")
        rest = [line async for line in lines if line]
    assert len(rest) == 1
    assert json.loads(rest[0].removeprefix("data: "))["error"]["code"] == "worker_lost"
    assert one.registry.outcomes == ["worker_lost"]


@BOTH
async def test_a_deadline_in_the_queue_costs_no_work(one: ScriptedApp, stream: bool) -> None:
    first = asyncio.create_task(one.chat())
    call = await one.backend.opened()
    answer = await one.chat(stream=stream, headers={"x-gateway-timeout-ms": "30"})
    assert answer.status_code == 504
    assert answer.json()["error"]["code"] == "deadline_exceeded"
    assert answer.headers["x-should-retry"] == "false"
    assert len(one.backend.calls) == 1
    assert one.registry.refused == ["deadline_exceeded"]
    call.end()
    assert (await first).status_code == 200


@BOTH
async def test_a_deadline_while_it_runs_aborts_it(one: ScriptedApp, stream: bool) -> None:
    answer = await one.chat(stream=stream, headers={"x-gateway-timeout-ms": "40"})
    assert answer.status_code == 504
    assert answer.headers["x-should-retry"] == "false"
    call = one.backend.calls[0]
    assert call.call.deadline is not None
    assert 0 < call.call.deadline < 0.04
    assert call.aborted
    assert one.admission.used == 1  # until the worker has let go
    call.fail("cancelled")
    await until(lambda: one.admission.used == 0)
    assert one.registry.outcomes == ["deadline_exceeded"]


async def test_a_deadline_in_a_started_stream_is_an_error_frame(one: ScriptedApp) -> None:
    one.backend.answer = lambda call: call.text("Hel")
    answer = await one.chat(stream=True, headers={"x-gateway-timeout-ms": "60"})
    assert answer.status_code == 200
    assert '"code":"deadline_exceeded"' in answer.text
    assert "[DONE]" not in answer.text
    assert one.backend.calls[0].aborted


@pytest.mark.parametrize("output", [False, True])
async def test_a_model_that_says_nothing_is_given_up(server: AppHost, output: bool) -> None:
    limits = {"first_event_timeout_s": 60.0, "gap_timeout_s": 0.05} if output else {"first_event_timeout_s": 0.05}
    it = server.app(**limits)
    it.backend.answer = lambda call: call.text("Hel") if output else call.accept()
    answer = await it.chat()
    assert answer.status_code == 504
    assert it.backend.calls[0].aborted


async def test_a_gap_is_counted_from_the_last_event(server: AppHost) -> None:
    it = server.app(gap_timeout_s=0.4)
    asked = asyncio.create_task(it.chat())
    call = await it.backend.opened()
    for _ in range(10):
        call.text("x")
        await asyncio.sleep(0.06)
    call.end()
    assert (await asked).status_code == 200


async def test_clients_that_leave_while_queued_are_forgotten_at_once(one: ScriptedApp) -> None:
    first = asyncio.create_task(one.chat())
    call = await one.backend.opened()
    async with raw_request(one, chat()), raw_request(one, chat(stream=True)):
        await until(lambda: one.admission.waiting == 2)
    await until(lambda: one.admission.waiting == 0)
    assert len(one.backend.calls) == 1
    call.end()
    assert (await first).status_code == 200
    next_one = asyncio.create_task(one.chat())
    (await one.backend.opened(2)).end()
    assert (await next_one).status_code == 200
    assert one.registry.outcomes == ["client_left", "client_left", "stop", "stop"]


@BOTH
async def test_a_full_queue_is_a_429(one: ScriptedApp, stream: bool) -> None:
    asked = [asyncio.create_task(one.chat()) for _ in range(3)]
    call = await one.backend.opened()
    await until(lambda: one.admission.waiting == 2)
    answer = await one.chat(stream=stream)
    assert answer.status_code == 429
    assert answer.json()["error"]["code"] == "overloaded"
    assert answer.headers["retry-after"].isdigit()
    assert one.registry.refused == ["overloaded"]
    one.backend.answer = lambda call: call.end()
    call.end()
    assert [(await each).status_code for each in asked] == [200, 200, 200]


async def test_a_model_that_is_not_ready_is_a_503(one: ScriptedApp) -> None:
    one.backend.become(State.RESTARTING, "the worker ended by SIGKILL")
    answer = await one.chat()
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "model_unavailable"
    assert int(answer.headers["retry-after"]) >= 1
    assert one.registry.refused == ["model_unavailable"]


async def test_an_answer_that_can_t_be_written_is_a_500(one: ScriptedApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TextAnswer, "render", lambda *_: 1 / 0)
    one.backend.answer = lambda call: call.text("x")
    answer = await one.chat()
    assert answer.status_code == 500
    assert "ZeroDivision" not in answer.text
    assert one.registry.outcomes == ["internal_error"]
    assert one.backend.calls[0].aborted


async def test_a_silent_stream_gets_comments(one: ScriptedApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "HEARTBEAT_S", 0.03)
    async with raw_request(one, chat(stream=True)) as (reader, _):
        call = await one.backend.opened()
        call.text("Hel")
        assert b": keep-alive\n\r\n" in await reader.readuntil(
            b": keep-alive\n\r\n"
        )  # a chunk of its own, no blank line
        await reader.readuntil(b": keep-alive\n\r\n")
        call.text("lo")
        call.end()
        rest = await reader.readuntil(b"data: [DONE]\n\n")
        assert b'"content":"lo"' in rest


async def test_no_comment_before_the_status(one: ScriptedApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "HEARTBEAT_S", 0.01)
    asked = asyncio.create_task(one.chat(stream=True))
    call = await one.backend.opened()
    await asyncio.sleep(0.05)
    call.text("x")
    call.end()
    assert (await asked).text.startswith("data: ")


async def test_a_client_that_does_not_read_does_not_hold_the_slot(one: ScriptedApp) -> None:
    """What it has not read waits in the gateway, merged; the worker is done with it, and its slot free."""
    async with raw_request(one, chat(stream=True)):
        call = await one.backend.opened()
        for _ in range(400):
            call.text("x" * 50_000)
            if call.timeline.writing or not len(call.timeline.tokens) % 20:
                await asyncio.sleep(0)
        call.end()
        await until(lambda: one.admission.used == 0)
        assert not one.registry.closed
    await until(lambda: len(one.registry.closed) == 1)
