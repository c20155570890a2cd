"""A live stream of speech: an exchange that is fed while it runs. Audio in, events out. Knows no wire format."""

import asyncio
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Self

from gateway.errors import ApiError
from gateway.requests.exchange import Exchange
from gateway.requests.routing import Route
from metrics.definitions.audio import FINAL_LATENCY, FIRST_PARTIAL
from metrics.timeline import Timeline
from pipelines.messages.audio import Acknowledged, Audio, Final, Partial, StreamItem, StreamRequest
from pipelines.messages.base import Said
from pipelines.messages.frames import Done

AHEAD_SECONDS = 10.0  # audio that may be under way to the worker: past it the client is not read
CHUNK_SECONDS = 0.5  # audio in one frame
SAMPLE_BYTES = {"pcm16": 2, "pcmu": 1, "pcma": 1}

Begin = Callable[[Route, StreamRequest, Timeline], Exchange]  # which is not opened yet


class LiveCall:
    """Two tasks may use it: one feeds, one reads `events`. Either may close it. `with` closes it by whatever ends the
    block."""

    def __init__(self, begin: Begin, route: Route, request: StreamRequest, timeline: Timeline) -> None:
        self.request = request
        self._begin = begin
        self._exchange = begin(route, request, timeline)
        self._rest = b""  # less than a sample
        self._sent = 0.0  # seconds of audio
        self._heard = 0.0
        self._room = asyncio.Event()

    @property
    def route(self) -> Route:
        return self._exchange.route

    @property
    def timeline(self) -> Timeline:
        return self._exchange.timeline

    @property
    def seconds(self) -> float:
        """Of audio, so far."""
        return self._sent

    async def open(self) -> None:
        """Take a place, once the model is loaded. Raises ApiError (429, 503) where there is none for another stream,
        and 504 where loading takes longer than a request may."""
        await self._exchange.open()

    async def move(self, route: Route, request: StreamRequest) -> None:
        """Go on with another model, before any audio. Raises ApiError, and goes on as before then."""
        exchange = self._begin(route, request, Timeline())
        await exchange.open()
        before, self._exchange, self.request = self._exchange, exchange, request
        before.close("stop")

    async def speak(self, data: bytes) -> None:
        """Audio in the stream's encoding, cut anywhere. Waits while the worker is too far behind."""
        request = self.request
        width = SAMPLE_BYTES[request.encoding]
        data = self._rest + data
        whole = len(data) // width * width
        self._rest = data[whole:]
        step = int(CHUNK_SECONDS * request.rate) * width
        for first in range(0, whole, step):
            chunk = data[first : min(whole, first + step)]
            self._sent += len(chunk) / width / request.rate
            await self.send(Audio(chunk))
            while self._sent - self._heard > AHEAD_SECONDS and not self._exchange.over:
                self._room.clear()
                await self._room.wait()

    async def send(self, item: StreamItem) -> None:
        await self._exchange.send(item)

    def configured(self, request: StreamRequest) -> None:
        """Audio from here on is as `request` says."""
        if request.encoding != self.request.encoding:
            self._rest = b""  # else it is the first byte of a sample whose second is still to come
        self.request = request

    async def events(self) -> AsyncIterator[Said]:
        """Until the stream has ended. Raises ApiError where it failed."""
        while True:
            exchange = self._exchange
            try:
                async for event in exchange.events():
                    match event:
                        case Acknowledged(seconds=seconds):
                            self._heard = seconds
                            self._room.set()
                        case Done():
                            pass
                        case _:
                            _measure(exchange, event)
                            yield event
            except ApiError:
                if exchange is self._exchange:
                    raise
            finally:
                self._room.set()
            if exchange is self._exchange:  # else it goes on with another model
                return

    def interrupt(self, error: ApiError) -> None:
        """End it with `error` while it is opened."""
        self._exchange.interrupt(error)

    def close(self) -> None:
        """Its client ends it, at any time. Idempotent; the place returns when the worker has let go too."""
        self._exchange.close("stop")
        self._room.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._exchange.__exit__(kind, error, trace)


def _measure(exchange: Exchange, event: Said) -> None:
    match event:
        case Partial(latency=float(seconds)):
            exchange.sample(FIRST_PARTIAL, seconds)
        case Final(latency=float(seconds)):
            exchange.sample(FINAL_LATENCY, seconds)
