"""Calls that are open: what any backend's have in common, and a worker's."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic

from gateway.backends.mailbox import Mailbox
from metrics.timeline import Timeline
from pipelines.messages.base import Item, encode_item
from pipelines.messages.frames import Abort, Event, Failed, Feed, ToWorker

Send = Callable[[ToWorker], None]


class EventSession:
    """See `gateway.backends.base.Session`. Its backend gives it events as they come, the terminal one at last, after
    `_abort` too, and says how a call is aborted and fed."""

    __slots__ = ("_closed", "_mailbox", "_timeline", "ended", "id")

    def __init__(self, id: str, timeline: Timeline) -> None:
        self.id = id
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._timeline = timeline
        self._mailbox = Mailbox()
        self._closed = False

    async def read(self) -> Sequence[Event]:
        return await self._mailbox.read()

    async def send(self, item: Item) -> None:
        if not self._closed and not self.ended.done():
            await self._feed(item)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            if not self.ended.done():
                self._abort()

    async def _feed(self, item: Item) -> None:
        raise NotImplementedError

    def _abort(self) -> None:
        raise NotImplementedError

    def receive(self, event: Event, received: float) -> None:
        """For the backend: an event came in at `received`. Stamps the timeline before anything is merged."""
        event.stamp(self._timeline, received)
        if event.ends:
            self._end(received)
        elif self._closed:
            return  # nobody reads it any more
        self._mailbox.put(event)

    def lose(self) -> None:
        """For the backend: the worker is gone, and this call with it."""
        message = "the model's worker was lost while it ran this request"
        self.receive(Failed(self.id, "worker_lost", message), monotonic())

    def _end(self, received: float) -> None:
        self._timeline.ended = received
        if not self.ended.done():
            self.ended.set_result(None)


class WorkerSession(EventSession):
    """`id` is its name on the wire: no other call of the worker's life has it."""

    __slots__ = ("_send", "_writable")

    def __init__(self, id: str, timeline: Timeline, send: Send, writable: Callable[[], Awaitable[None]]) -> None:
        super().__init__(id, timeline)
        self._send = send
        self._writable = writable

    async def _feed(self, item: Item) -> None:
        self._send(Feed(self.id, encode_item(item)))
        await self._writable()

    def _abort(self) -> None:
        self._send(Abort(self.id))
