"""One live stream's life: a place -> open -> audio in, events out -> close, exactly once. Knows no wire format.

Unlike a request it has no deadline: it may be quiet for as long as its client likes.
"""

import asyncio
from collections.abc import AsyncIterator
from time import monotonic

from gateway import errors
from gateway.backends.base import BackendError, Call, Session
from gateway.errors import ApiError
from gateway.requests import refusals
from gateway.requests.admission import Lease
from gateway.requests.routing import Route
from metrics.definitions.audio import FINAL_LATENCY, FIRST_PARTIAL
from metrics.registry import Registry
from metrics.timeline import Timeline
from pipelines.messages.audio import Audio, Final, Heard, Partial, StreamItem, StreamRequest, encode_item
from pipelines.messages.base import Said
from pipelines.messages.frames import Accepted, Done, Failed, Priority

AHEAD_SECONDS = 10.0  # audio that may be under way to the worker: past it the client is not read
CHUNK_SECONDS = 0.5  # audio in one frame
SAMPLE_BYTES = {"pcm16": 2, "pcmu": 1, "pcma": 1}


class LiveCall:
    """Two tasks may use it: one feeds, one reads `events`. Either may close it."""

    def __init__(
        self, id: str, route: Route, request: StreamRequest, priority: Priority, timeline: Timeline, registry: Registry
    ) -> None:
        self.route = route
        self.request = request
        self._id = id
        self._priority: Priority = priority
        self._timeline = timeline
        self._registry = registry
        self._lease: Lease | None = None
        self._session: Session | None = None
        self._rest = b""  # less than a sample
        self._sent = 0.0  # seconds of audio
        self._heard = 0.0
        self._room = asyncio.Event()
        self._closed = False

    async def open(self) -> None:
        """Take a place, once the model is loaded. Raises ApiError (429, 503) where there is none for another stream,
        and 504 where loading takes longer than a request may."""
        self._timeline.queued = monotonic()
        deadline = self._timeline.arrival + self.route.settings.timeout_s
        place = self.route.streams.acquire(1, self._priority, deadline)
        try:
            self._lease = await refusals.granted(self.route, place, self._registry)
        except ApiError as error:
            self.close(error.code)
            raise
        except asyncio.CancelledError:
            self.close("client_left")
            raise
        self._begin(self._lease)

    def _begin(self, lease: Lease) -> None:
        self._timeline.slot = self._timeline.opened = monotonic()
        try:
            session = lease.replica.open(Call(self._id, self.request, priority=self._priority), self._timeline)
        except BackendError as error:
            self.close(error.code)
            raise errors.backend_error(error) from error
        self._session = session
        session.ended.add_done_callback(lambda _: lease.release())
        session.ended.add_done_callback(lambda _: self._room.set())

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
            while self._sent - self._heard > AHEAD_SECONDS and not self._ended:
                self._room.clear()
                await self._room.wait()

    async def send(self, item: StreamItem) -> None:
        if self._session is not None:
            await self._session.send(encode_item(item))

    def configured(self, request: StreamRequest) -> None:
        """Audio from here on is as `request` says."""
        if request.encoding != self.request.encoding:
            self._rest = b""  # else it is the first byte of a sample whose second is still to come
        self.request = request

    async def events(self) -> AsyncIterator[Said]:
        """Until the stream has ended. Raises ApiError where it failed."""
        assert self._session is not None
        while True:
            for event in await self._session.read():
                match event:
                    case Accepted():
                        pass
                    case Heard(seconds=seconds):
                        self._heard = seconds
                        self._room.set()
                    case Done():
                        self._timeline.outcome = "stop"
                        return
                    case Failed():
                        self.close(event.code)
                        raise refusals.failed(self.route, event, began=True)
                    case _:
                        self._measure(event)
                        yield event

    def close(self, outcome: str | None = None) -> None:
        """Let go of everything. Idempotent; the place returns when the worker has let go too."""
        if self._closed:
            return
        self._closed = True
        self._room.set()
        if self._session is not None:
            self._session.close()
        elif self._lease is not None:
            self._lease.release()
        self._timeline.closed = monotonic()
        if not self._timeline.outcome:
            self._timeline.outcome = outcome or "stop"
        self._registry.request(self.route.name, self.route.kind, self._timeline)

    @property
    def seconds(self) -> float:
        """Of audio, so far."""
        return self._sent

    @property
    def _ended(self) -> bool:
        return self._closed or self._session is None or self._session.ended.done()

    def _measure(self, event: Said) -> None:
        route = self.route
        match event:
            case Partial(latency=float(seconds)):
                self._registry.sample(route.name, route.kind, FIRST_PARTIAL, seconds)
            case Final(latency=float(seconds)):
                self._registry.sample(route.name, route.kind, FINAL_LATENCY, seconds)
