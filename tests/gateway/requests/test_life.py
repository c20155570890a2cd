"""What holds for every request, be it one body, a stream of events or a live stream: it ends once, with a reason, and
gives back what it held."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from gateway.api.live.plain import SpeechSession
from gateway.api.live.realtime import RealtimeSession
from gateway.api.text.answer import TextAnswer, TextStream
from gateway.backends.base import State
from gateway.requests.admission import Admission
from tests.gateway.callers import CALLERS, Body, Caller, Events, Plain, Realtime
from tests.gateway.scripted import ScriptedBackend, ScriptedCall
from tests.gateway.scripted_app import AppHost, ScriptedApp, app_host
from tests.servers import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

RENDERERS: dict[type[Caller], tuple[type[Any], str]] = {
    Body: (TextAnswer, "render"),
    Events: (TextStream, "render"),
    Plain: (SpeechSession, "_render"),
    Realtime: (RealtimeSession, "_render"),
}


class OneSlot:
    """A model with one slot, and clients of one form that want it."""

    def __init__(self, app: ScriptedApp, form: type[Caller]) -> None:
        self.app = app
        self.form = form
        self.backend = app.backend
        self.registry = app.registry
        self.callers: list[Caller] = []

    @property
    def admission(self) -> Admission:
        return self.form.admission(self.app)

    def ask(self) -> Caller:
        self.callers.append(self.form(self.app))
        return self.callers[-1]

    async def begun(self, *, output: bool = False) -> tuple[Caller, ScriptedCall]:
        """One that holds the slot; with `output`, the work has said something that its client has."""
        caller = self.ask()
        call = await self.backend.opened(len(self.backend.calls) + 1)
        call.accept()
        if output:
            self.form.say(call)
            if self.form is not Body:
                await asyncio.wait_for(caller.started.wait(), 5)
        return caller, call

    async def told(self, caller: Caller) -> str:
        """What a client was told in the end."""
        return await asyncio.wait_for(caller.asked, 5)

    async def check(self) -> None:
        """Whatever happened: each request is closed once, with a reason, and nothing is held."""
        for caller in self.callers:
            await caller.leave()
        for call in self.backend.calls:
            if not call.session.ended.done():
                call.fail("cancelled")
        await until(lambda: len(self.registry.closed) >= len(self.callers))
        await until(lambda: self.admission.used == 0 and self.admission.waiting == 0)
        assert len(self.registry.closed) == len(self.callers)
        assert all(timeline.closed is not None and timeline.outcome for timeline in self.registry.closed)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AppHost]:
    async with app_host(str(tmp_path_factory.mktemp("spool"))) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module", params=CALLERS, ids=lambda form: form.__name__.lower())
async def one(server: AppHost, request: pytest.FixtureRequest) -> AsyncIterator[OneSlot]:
    form: type[Caller] = request.param
    it = OneSlot(server.app(ScriptedBackend(slots=1), kind=form.kind, max_queue=0, timeout_s=20.0), form)
    yield it
    await it.check()


async def test_it_ends_well(one: OneSlot) -> None:
    caller, call = await one.begun(output=True)
    assert one.admission.used == 1
    one.form.end(call)
    assert await one.told(caller) == "stop"
    assert one.registry.outcomes == ["stop"]
    assert not call.aborted
    timeline = one.registry.closed[0]
    assert timeline.queued is not None
    assert timeline.slot is not None
    assert timeline.opened is not None
    assert timeline.ended is not None
    assert timeline.arrival <= timeline.queued <= timeline.slot <= timeline.opened <= timeline.ended
    assert one.admission.used == 0


async def test_it_is_refused_where_all_is_taken(one: OneSlot) -> None:
    await one.begun()
    assert await one.told(one.ask()) == "overloaded"
    assert one.registry.outcomes == one.registry.refused == ["overloaded"]
    assert one.registry.closed[0].slot is None
    assert len(one.backend.calls) == one.admission.used == 1


async def test_it_is_refused_where_the_model_is_gone(one: OneSlot) -> None:
    one.backend.become(State.RESTARTING, "the worker ended by SIGKILL")
    assert await one.told(one.ask()) == "model_unavailable"
    assert one.registry.outcomes == one.registry.refused == ["model_unavailable"]


@pytest.mark.parametrize("output", [False, True])
async def test_a_worker_that_is_lost_ends_it(one: OneSlot, output: bool) -> None:
    caller, call = await one.begun(output=output)
    call.session.lose()
    assert await one.told(caller) == "worker_lost"
    assert one.registry.outcomes == ["worker_lost"]
    assert one.admission.used == 0
    assert not call.aborted  # there is nobody to tell


async def test_a_worker_that_goes_before_it_is_opened_gives_the_slot_back(
    one: OneSlot, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = ScriptedBackend.open

    def gone(self: ScriptedBackend, *args: Any) -> Any:
        self.state = State.RESTARTING
        try:
            return original(self, *args)
        finally:
            self.state = State.READY

    monkeypatch.setattr(ScriptedBackend, "open", gone)
    assert await one.told(one.ask()) == "worker_lost"
    assert one.registry.outcomes == ["worker_lost"]
    assert one.admission.used == 0


@pytest.mark.parametrize("output", [False, True])
async def test_a_client_that_leaves_ends_it(one: OneSlot, output: bool) -> None:
    caller, call = await one.begun(output=output)
    await caller.leave()
    await until(lambda: call.aborted)
    # To leave is how a client ends a live stream.
    assert one.registry.outcomes == ["stop" if one.form.live else "client_left"]
    assert one.admission.used == 1  # until the worker has let go
    call.fail("cancelled")
    await until(lambda: one.admission.used == 0)


async def test_a_client_that_leaves_while_it_waits_is_forgotten(server: AppHost, one: OneSlot) -> None:
    loading = ScriptedBackend(slots=1)
    loading.state = State.LOADING
    one.app = server.app(loading, kind=one.form.kind)
    caller = one.ask()
    await until(lambda: one.admission.waiting == 1)
    await caller.leave()
    await until(lambda: one.registry.outcomes == ["client_left"])
    assert one.admission.waiting == 0
    assert not loading.calls
    assert not one.registry.refused


async def test_a_deadline_that_passes_while_it_waits_ends_it(server: AppHost, one: OneSlot) -> None:
    loading = ScriptedBackend(slots=1)
    loading.state = State.LOADING
    one.app = server.app(loading, kind=one.form.kind, timeout_s=0.03)
    assert await one.told(one.ask()) == "deadline_exceeded"
    assert one.registry.outcomes == one.registry.refused == ["deadline_exceeded"]
    assert not loading.calls


@pytest.mark.parametrize("output", [False, True])
async def test_a_deadline_that_passes_while_it_runs_ends_a_request_alone(
    server: AppHost, one: OneSlot, output: bool
) -> None:
    limits = {"timeout_s": 0.1, "first_event_timeout_s": 0.05, "gap_timeout_s": 0.05}
    one.app = server.app(one.backend, kind=one.form.kind, **limits)
    caller, call = await one.begun(output=output)
    assert (call.call.deadline is None) == one.form.live
    if one.form.live:  # it may be quiet for as long as it likes
        await asyncio.sleep(0.15)
        assert not one.registry.closed
        one.form.end(call)
        assert await one.told(caller) == "stop"
    else:
        assert await one.told(caller) == "deadline_exceeded"
        assert one.registry.outcomes == ["deadline_exceeded"]
        assert call.aborted


async def test_what_breaks_in_the_gateway_ends_it(one: OneSlot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*RENDERERS[one.form], lambda *_: 1 / 0)
    caller, call = await one.begun()
    one.form.say(call)
    await until(lambda: call.aborted)
    assert one.registry.outcomes == ["internal_error"]
    await asyncio.wait([caller.asked], timeout=5)


@pytest.mark.parametrize("form", CALLERS, ids=lambda form: form.__name__.lower())
async def test_a_server_that_drains_ends_it(tmp_path_factory: pytest.TempPathFactory, form: type[Caller]) -> None:
    """A request goes on to its end; a live stream is told to go elsewhere."""
    async with app_host(str(tmp_path_factory.mktemp("spool"))) as running:
        it = OneSlot(running.app(ScriptedBackend(slots=1), kind=form.kind), form)
        caller, call = await it.begun(output=True)
        it.app.gateway.server.should_exit = True
        if form.live:
            await until(lambda: call.aborted)
        else:
            await asyncio.sleep(0.15)
            assert not caller.asked.done()
            form.end(call)
        assert await it.told(caller) == "stop"
        await it.check()
    assert it.registry.outcomes == ["stop"]
