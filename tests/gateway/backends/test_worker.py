"""Calls on a worker: events, timelines, slow readers, closing."""

import asyncio
from collections.abc import AsyncIterator
from random import Random

import pytest
import uvloop

from gateway.backends.base import BackendError, Call, State
from gateway.backends.worker import WorkerBackend
from metrics.registry import Registry
from metrics.timeline import Timeline
from pipelines.kinds import metrics_by_kind
from pipelines.messages.audio import Audio, End
from pipelines.messages.frames import Accepted, Done, Failed
from pipelines.messages.text import ChoiceDone, Delta, StringPrompt, TextRequest
from tests.fakes import fake_spec
from tests.gateway.backends.workers import PATIENCE, each, first, lost, open_call, read, running, terminals, text, until


@pytest.fixture
async def backend() -> AsyncIterator[WorkerBackend]:
    async with running() as backend:
        yield backend


async def test_events_and_stamps_of_a_call(backend: WorkerBackend) -> None:
    timeline = Timeline()
    session = open_call(backend, "one two three", n=2, timeline=timeline)
    events = await read(session)
    assert isinstance(events[0], Accepted)
    assert isinstance(events[-1], Done)
    for index in range(2):
        assert text([e for e in events if isinstance(e, Delta) and e.index == index]) == "one two three"
    assert session.ended.done()
    assert timeline.opened is not None
    assert timeline.accepted is not None
    assert timeline.ended is not None
    assert timeline.arrival <= timeline.opened <= timeline.accepted <= timeline.tokens[0][0] <= timeline.ended
    assert sorted((index, tokens) for _, index, tokens in timeline.tokens) == [(0, 1)] * 3 + [(1, 1)] * 3
    assert (timeline.prompt_tokens, timeline.completion_tokens) == (3, 6)
    assert 0 < timeline.worker_prepare < timeline.worker_total <= timeline.ended - timeline.opened


async def test_a_reader_that_lags_finds_merged_deltas_and_every_token_stamped(backend: WorkerBackend) -> None:
    timeline = Timeline()
    session = open_call(backend, "word !tokens=3000", timeline=timeline)
    await until(session.ended.done)  # the worker is done long before anybody reads
    _, delta, *ends = await session.read()
    assert isinstance(delta, Delta)
    assert delta.text == "word" + " word" * 2999
    assert delta.tokens == 3000
    assert len(timeline.tokens) == 3000
    assert [type(event) for event in ends] == [ChoiceDone, Done]


async def test_calls_of_one_id_are_kept_apart(backend: WorkerBackend) -> None:
    one, two = open_call(backend, "one one !step-ms=5"), open_call(backend, "two two !step-ms=5")
    assert [text(await read(session)) for session in (one, two)] == ["one one", "two two"]


async def test_close_ends_the_work_and_then_the_session(backend: WorkerBackend) -> None:
    session = open_call(backend, "!tokens=100000 !step-ms=5")
    await first(session, Delta)
    session.close()
    session.close()
    assert not session.ended.done()  # the slot is held until the worker lets go
    events = await read(session)
    assert [type(event) for event in terminals(events)] == [Failed]
    await until(session.ended.done)
    session.close()
    assert text(await read(open_call(backend, "still here"))) == "still here"


async def test_close_after_the_end_does_nothing(backend: WorkerBackend) -> None:
    session = open_call(backend, "one")
    events = await read(session)
    session.close()
    assert isinstance(events[-1], Done)


async def test_chunks_reach_a_stream_in_order(backend: WorkerBackend) -> None:
    session = open_call(backend, "!stream")
    for number in range(50):
        await session.send(Audio(f"{number}".encode()))
    await session.send(End())
    assert text(await read(session)).split() == [f"{number}" for number in range(50)]
    await session.send(Audio(b"after the end"))


async def test_a_worker_that_is_not_ready_takes_no_call() -> None:
    backend = WorkerBackend(fake_spec(), registry=Registry(metrics_by_kind()))
    assert backend.ready is None
    with pytest.raises(BackendError) as refused:
        open_call(backend, "one")
    assert refused.value.code == "worker_lost"
    assert refused.value.retryable


async def _caller(backend: WorkerBackend, number: int, random: Random, ends: list[tuple[int, str]]) -> None:
    """One request, now and then aborted, bad, or breaking its step."""
    words = random.choice(["one two three", "!tokens=40", "!tokens=2 !slow-prepare=2", "!bad", "!crash-step a b c"])
    while True:
        await until(lambda: backend.ready is not None)
        try:
            session = backend.open(Call("same id", TextRequest(prompts=[StringPrompt(words)])), Timeline())
            break
        except BackendError:
            continue
    leave = random.choice([None, None, 0, 1, 3])  # after so many events
    seen = 0
    async for event in each(session):
        if isinstance(event, Done | Failed):
            ends.append((number, "done" if isinstance(event, Done) else event.code))
        seen += 1
        if leave is not None and seen >= leave:
            session.close()
    assert session.ended.done()


def test_a_thousand_requests_end_exactly_once() -> None:
    """With aborts, refusals, broken steps and a killed worker among them; on the loop that serves."""

    async def main() -> None:
        random = Random(7)
        ends: list[tuple[int, str]] = []
        async with running(fake_spec(slots=16)) as backend, asyncio.timeout(3 * PATIENCE):
            slots = asyncio.Semaphore(64)
            killed = False

            async def call(number: int) -> None:
                nonlocal killed
                async with slots:
                    if number == 500:
                        killed = True
                        open_call(backend, "one two !die")
                    await _caller(backend, number, random, ends)

            await asyncio.gather(*(call(number) for number in range(1000)))
            assert sorted(number for number, _ in ends) == list(range(1000))
            assert {end for _, end in ends} == {"done", "cancelled", "invalid_request", "internal_error", "worker_lost"}
            assert backend.restarts >= 1
            await until(lambda: backend.state is State.READY)
            assert text(await read(open_call(backend, "one last"))) == "one last"
            assert not backend._sessions

    uvloop.run(main())


async def test_what_the_worker_reports_reaches_the_registry() -> None:
    registry = Registry(metrics_by_kind())
    async with running(registry=registry) as backend:
        await read(open_call(backend, "one two three"))
        await asyncio.sleep(0)  # a step is counted behind those who read its events
        body = registry.render()[0].decode()
        for line in (
            'gateway_workers{model="fake",pipeline="text",state="ready"} 1.0',
            'gateway_step_rows_total{kind="decode",model="fake",pipeline="text"} 3.0',
        ):
            assert line in body
        for name in ("gateway_load_seconds", "gateway_resident_bytes"):
            [value] = [line.split()[-1] for line in body.splitlines() if line.startswith(name + "{")]
            assert float(value) > 0


async def test_a_lost_worker_ends_its_calls_once(backend: WorkerBackend) -> None:
    sessions = [open_call(backend, "one two three four !step-ms=20" + (" !die" if i == 3 else "")) for i in range(6)]
    closed = sessions[0]
    closed.close()
    for session in sessions[1:]:
        assert lost(await read(session))
    await until(lambda: all(session.ended.done() for session in sessions))
