"""What is no worker process can run requests too: all that a request's life asks of it is the protocol."""

import asyncio
from time import monotonic
from typing import Any

import msgspec
import pytest

from gateway.backends.base import Call, State
from gateway.backends.session import EventSession
from gateway.errors import ApiError
from gateway.requests.exchange import Exchange, Job
from gateway.requests.live import LiveCall
from gateway.requests.routing import Route
from metrics.timeline import Timeline
from pipelines.messages.audio import Audio, End, Final, Heard, StreamItem, StreamRequest
from pipelines.messages.frames import Done, Event, Failed, Ready, Said, Timing, Usage
from pipelines.messages.text import Delta, StringPrompt, TextRequest
from tests.gateway.desk import Book
from tests.gateway.scripted import SETTINGS, ScriptedBackend
from tests.live import until


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
            self._say(Heard(self.id, len(heard) / 48_000))
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
def book() -> Book:
    return Book()


@pytest.fixture
def route(book: Book) -> Route:
    backend = EchoBackend()
    assert backend.state is State.READY
    return Route("m", "text", (), msgspec.structs.replace(SETTINGS, max_queue=0), [backend], book)


def exchange(route: Route, book: Book, text: str) -> Exchange:
    request = TextRequest(prompts=[StringPrompt(text)])
    return Exchange(Job("x", route, request, 1, 10.0), Timeline(), book)


def live(route: Route, book: Book) -> LiveCall:
    def begin(route: Route, request: StreamRequest, timeline: Timeline) -> Exchange:
        return Exchange(Job("x", route, request, 1, 10.0, live=True), timeline, book)

    return LiveCall(begin, route, StreamRequest(), Timeline())


async def test_a_request(route: Route, book: Book) -> None:
    with exchange(route, book, "one two three") as it:
        await it.open()
        said = [event async for event in it.events()]
    assert "".join(event.text for event in said if isinstance(event, Delta)) == "onetwothree"
    assert isinstance(said[-1], Done)
    assert book.outcomes == ["stop"]
    assert book.closed[0].generated == 3
    await until(lambda: route.admission.used == 0)


async def test_a_live_stream(route: Route, book: Book) -> None:
    said: list[Said] = []
    call = live(route, book)
    await call.open()
    with call:
        for piece in (b"on", b"e tw", b"o "):
            await call.speak(piece)
        await call.send(End())
        said += [event async for event in call.events()]
    await until(lambda: route.streams.used == 0)
    assert [event.transcript for event in said if isinstance(event, Final)] == ["one two "]
    assert book.outcomes == ["stop"]


async def test_either_is_aborted_once_and_holds_its_place_until_then(route: Route, book: Book) -> None:
    call = live(route, book)
    request = exchange(route, book, "one " * 10_000)
    for it, admission in ((call, route.streams), (request, route.admission)):
        await it.open()
        with pytest.raises(ApiError, match="full"):
            await exchange_like(it, route, book).open()
        it.close()
        it.close()
        assert admission.used == 1
        for _ in range(5):
            await asyncio.sleep(0)
        assert admission.used == 0
    assert book.outcomes == ["overloaded", "stop", "overloaded", "cancelled"]


def exchange_like(it: Exchange | LiveCall, route: Route, book: Book) -> Exchange | LiveCall:
    return live(route, book) if isinstance(it, LiveCall) else exchange(route, book, "one")
