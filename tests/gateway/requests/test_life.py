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


class Place:
    """One model with one place, and clients of one sort that want it."""

    def __init__(self, app: ScriptedApp, sort: type[Caller]) -> None:
        self.app = app
        self.sort = sort
        self.backend = app.backend
        self.registry = app.registry
        self.callers: list[Caller] = []

    @property
    def admission(self) -> Admission:
        return self.sort.admission(self.app)

    def ask(self) -> Caller:
        self.callers.append(self.sort(self.app))
        return self.callers[-1]

    async def begun(self, *, output: bool = False) -> tuple[Caller, ScriptedCall]:
        """One that holds the place; with `output`, the work has said something that its client has."""
        caller = self.ask()
        call = await self.backend.opened(len(self.backend.calls) + 1)
        call.accept()
        if output:
            self.sort.say(call)
            if self.sort is not Body:
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


@pytest_asyncio.fixture(loop_scope="module", params=CALLERS, ids=lambda sort: sort.__name__.lower())
async def place(server: AppHost, request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    sort: type[Caller] = request.param
    it = Place(server.app(ScriptedBackend(slots=1), kind=sort.kind, max_queue=0, timeout_s=20.0), sort)
    yield it
    await it.check()


async def test_it_ends_well(place: Place) -> None:
    caller, call = await place.begun(output=True)
    assert place.admission.used == 1
    place.sort.end(call)
    assert await place.told(caller) == "stop"
    assert place.registry.outcomes == ["stop"]
    assert not call.aborted
    timeline = place.registry.closed[0]
    assert timeline.queued is not None
    assert timeline.slot is not None
    assert timeline.opened is not None
    assert timeline.ended is not None
    assert timeline.arrival <= timeline.queued <= timeline.slot <= timeline.opened <= timeline.ended
    assert place.admission.used == 0


async def test_it_is_refused_where_all_is_taken(place: Place) -> None:
    await place.begun()
    assert await place.told(place.ask()) == "overloaded"
    assert place.registry.outcomes == place.registry.refused == ["overloaded"]
    assert place.registry.closed[0].slot is None
    assert len(place.backend.calls) == place.admission.used == 1


async def test_it_is_refused_where_the_model_is_gone(place: Place) -> None:
    place.backend.become(State.RESTARTING, "the worker ended by SIGKILL")
    assert await place.told(place.ask()) == "model_unavailable"
    assert place.registry.outcomes == place.registry.refused == ["model_unavailable"]


@pytest.mark.parametrize("output", [False, True])
async def test_a_worker_that_is_lost_ends_it(place: Place, output: bool) -> None:
    caller, call = await place.begun(output=output)
    call.session.lose()
    assert await place.told(caller) == "worker_lost"
    assert place.registry.outcomes == ["worker_lost"]
    assert place.admission.used == 0
    assert not call.aborted  # there is nobody to tell


async def test_a_worker_that_goes_before_it_is_opened_gives_the_place_back(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = ScriptedBackend.open

    def gone(self: ScriptedBackend, *args: Any) -> Any:
        self.state = State.RESTARTING
        try:
            return original(self, *args)
        finally:
            self.state = State.READY

    monkeypatch.setattr(ScriptedBackend, "open", gone)
    assert await place.told(place.ask()) == "worker_lost"
    assert place.registry.outcomes == ["worker_lost"]
    assert place.admission.used == 0


@pytest.mark.parametrize("output", [False, True])
async def test_a_client_that_leaves_ends_it(place: Place, output: bool) -> None:
    caller, call = await place.begun(output=output)
    await caller.leave()
    await until(lambda: call.aborted)
    # To leave is how a client ends a live stream.
    assert place.registry.outcomes == ["stop" if place.sort.live else "client_left"]
    assert place.admission.used == 1  # until the worker has let go
    call.fail("cancelled")
    await until(lambda: place.admission.used == 0)


async def test_a_client_that_leaves_while_it_waits_is_forgotten(server: AppHost, place: Place) -> None:
    loading = ScriptedBackend(slots=1)
    loading.state = State.LOADING
    place.app = server.app(loading, kind=place.sort.kind)
    caller = place.ask()
    await until(lambda: place.admission.waiting == 1)
    await caller.leave()
    await until(lambda: place.registry.outcomes == ["client_left"])
    assert place.admission.waiting == 0
    assert not loading.calls
    assert not place.registry.refused


async def test_a_deadline_that_passes_while_it_waits_ends_it(server: AppHost, place: Place) -> None:
    loading = ScriptedBackend(slots=1)
    loading.state = State.LOADING
    place.app = server.app(loading, kind=place.sort.kind, timeout_s=0.03)
    assert await place.told(place.ask()) == "deadline_exceeded"
    assert place.registry.outcomes == place.registry.refused == ["deadline_exceeded"]
    assert not loading.calls


@pytest.mark.parametrize("output", [False, True])
async def test_a_deadline_that_passes_while_it_runs_ends_a_request_alone(
    server: AppHost, place: Place, output: bool
) -> None:
    limits = {"timeout_s": 0.1, "first_event_timeout_s": 0.05, "gap_timeout_s": 0.05}
    place.app = server.app(place.backend, kind=place.sort.kind, **limits)
    caller, call = await place.begun(output=output)
    assert (call.call.deadline is None) == place.sort.live
    if place.sort.live:  # it may be quiet for as long as it likes
        await asyncio.sleep(0.15)
        assert not place.registry.closed
        place.sort.end(call)
        assert await place.told(caller) == "stop"
    else:
        assert await place.told(caller) == "deadline_exceeded"
        assert place.registry.outcomes == ["deadline_exceeded"]
        assert call.aborted


async def test_what_breaks_in_the_gateway_ends_it(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*RENDERERS[place.sort], lambda *_: 1 / 0)
    caller, call = await place.begun()
    place.sort.say(call)
    await until(lambda: call.aborted)
    assert place.registry.outcomes == ["internal_error"]
    await asyncio.wait([caller.asked], timeout=5)


@pytest.mark.parametrize("sort", CALLERS, ids=lambda sort: sort.__name__.lower())
async def test_a_server_that_drains_ends_it(tmp_path_factory: pytest.TempPathFactory, sort: type[Caller]) -> None:
    """A request goes on to its end; a live stream is told to go elsewhere."""
    async with app_host(str(tmp_path_factory.mktemp("spool"))) as running:
        it = Place(running.app(ScriptedBackend(slots=1), kind=sort.kind), sort)
        caller, call = await it.begun(output=True)
        it.app.gateway.server.should_exit = True
        if sort.live:
            await until(lambda: call.aborted)
        else:
            await asyncio.sleep(0.15)
            assert not caller.asked.done()
            sort.end(call)
        assert await it.told(caller) == "stop"
        await it.check()
    assert it.registry.outcomes == ["stop"]
