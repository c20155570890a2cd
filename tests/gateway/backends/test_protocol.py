"""What is no worker process can run requests too: all that a request's life asks of it is the protocol."""

import asyncio
from time import monotonic
from typing import Any

import msgspec
import pytest

from gateway.backends.base import Call, State
from gateway.backends.session import EventSession
from gateway.errors import ApiError
from gateway.requests.exchange import Exchange, Job, Terms
from gateway.requests.live import LiveCall
from gateway.requests.routing import Route
from metrics.timeline import Timeline
from pipelines.messages.audio import Acknowledged, Audio, End, Final, StreamItem, StreamRequest
from pipelines.messages.base import Said
from pipelines.messages.frames import Done, Event, Failed, Ready, Timing, Usage
from pipelines.messages.text import Delta, StringPrompt, TextRequest
from tests.gateway.scripted import SETTINGS, ScriptedBackend
from tests.gateway.scripted_app import RecordingRegistry
from tests.servers import until


class EchoSession(EventSession):
    """A call that is a task, as one that is sent on to another server would be."""

    def __init__(self, call: Call, timeline: Timeline) -> None:
        super().__init__(call.id, timeline)
        self._call = call
        self._items: asyncio.Queue[StreamItem] = asyncio.Queue()
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._over)

    async def _feed(self, item: StreamItem) -> None:
        await self._items.put(item)

    def _abort(self) -> None:
        self._task.cancel()

    def _say(self, event: Event) -> None:
        self.receive(event, monotonic())

    def _over(self, task: "asyncio.Task[None]") -> None:
        aborted = Failed(self.id, "cancelled", "it was aborted")
        self._say(aborted if task.cancelled() else Done(self.id, Usage(), Timing()))

    async def _run(self) -> None:
        request = self._call.request
        if isinstance(request, TextRequest):
            (prompt,) = request.prompts
            assert isinstance(prompt, StringPrompt)
            for word in prompt.text.split():
                self._say(Delta(self.id, 0, word, 1, 0.0))
                await asyncio.sleep(0.001)
        else:
            await self._listen()

    async def _listen(self) -> None:
        heard = bytearray()
        while not isinstance(item := await self._items.get(), End):
            assert isinstance(item, Audio)
            heard += item.data
            self._say(Acknowledged(self.id, len(heard) / 48_000))
        self._say(Final(self.id, 0, "", heard.decode(), 0.0, 1.0, 1.0))


class EchoBackend(ScriptedBackend):
    """Says what it hears."""

    def open(self, call: Call, timeline: Timeline) -> Any:
        timeline.opened = monotonic()
        return EchoSession(call, timeline)

    @property
    def ready(self) -> Ready:
        return Ready(slots=1, streams=1, load_seconds=0.0)


@pytest.fixture
def registry() -> RecordingRegistry:
    return RecordingRegistry()


@pytest.fixture
def route(registry: RecordingRegistry) -> Route:
    backend = EchoBackend()
    assert backend.state is State.READY
    return Route("m", "text", (), msgspec.structs.replace(SETTINGS, max_queue=0), [backend], registry)


def exchange(route: Route, registry: RecordingRegistry, text: str) -> Exchange:
    request = TextRequest(prompts=[StringPrompt(text)])
    return Exchange(Job("x", route, request, 1, Terms(10.0)), Timeline(), registry)


def live(route: Route, registry: RecordingRegistry) -> LiveCall:
    def begin(route: Route, request: StreamRequest, timeline: Timeline) -> Exchange:
        return Exchange(Job("x", route, request, 1, Terms(10.0), live=True), timeline, registry)

    return LiveCall(begin, route, StreamRequest(), Timeline())


async def test_a_request(route: Route, registry: RecordingRegistry) -> None:
    with exchange(route, registry, "one two three") as it:
        await it.open()
        said = [event async for event in it.events()]
    assert "".join(event.text for event in said if isinstance(event, Delta)) == "onetwothree"
    assert isinstance(said[-1], Done)
    assert registry.outcomes == ["stop"]
    assert registry.closed[0].generated == 3
    await until(lambda: route.admission.used == 0)


async def test_a_live_stream(route: Route, registry: RecordingRegistry) -> None:
    said: list[Said] = []
    call = live(route, registry)
    await call.open()
    with call:
        for piece in (b"on", b"e tw", b"o "):
            await call.speak(piece)
        await call.send(End())
        said += [event async for event in call.events()]
    await until(lambda: route.streams.used == 0)
    assert [event.transcript for event in said if isinstance(event, Final)] == ["one two "]
    assert registry.outcomes == ["stop"]


async def test_either_is_aborted_once_and_holds_its_place_until_then(route: Route, registry: RecordingRegistry) -> None:
    call = live(route, registry)
    request = exchange(route, registry, "one " * 10_000)
    for it, admission in ((call, route.streams), (request, route.admission)):
        await it.open()
        with pytest.raises(ApiError, match="full"):
            await exchange_like(it, route, registry).open()
        it.close()
        it.close()
        assert admission.used == 1
        for _ in range(5):
            await asyncio.sleep(0)
        assert admission.used == 0
    assert registry.outcomes == ["overloaded", "stop", "overloaded", "cancelled"]


def exchange_like(it: Exchange | LiveCall, route: Route, registry: RecordingRegistry) -> Exchange | LiveCall:
    return live(route, registry) if isinstance(it, LiveCall) else exchange(route, registry, "one")
