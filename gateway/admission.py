"""Who may start, and when: slots, a bounded queue of two priorities, deadlines.

The queue is here and not in the workers (late binding): a waiter gets whichever replica frees first, priorities and
deadlines hold until the last moment, and a worker that dies loses nothing that has not started.
"""

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from time import monotonic

from gateway.backends.base import Backend, State
from pipelines.messages import Priority

# After so many interactive grants in a row, a waiting batch request is next.
INTERACTIVE_RUN = 4

MAX_RETRY_AFTER_S = 60
UNMEASURED_HOLD_S = 1.0  # what one request is taken to hold its slots for, before any has ended
LOADING_RETRY_AFTER_S = 5  # the same for a model that has not been loaded yet


class Overloaded(Exception):
    """The slots are taken and the queue is full. `retry_after`: whole seconds until there should be room."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"overloaded, retry after {retry_after} s")
        self.retry_after = retry_after


class QueueDeadline(Exception):
    """The deadline passed before a slot came free; no work was done."""


class Unavailable(Exception):
    """No replica is ready, or will be. `reason` is for people."""

    def __init__(self, retry_after: int, reason: str | None = None) -> None:
        super().__init__(reason or "no replica is ready")
        self.retry_after = retry_after
        self.reason = reason


class Slots:
    """The slots of one replica, or its places for live streams. They outlive a restart: each holder gives back what it
    took when its session ends."""

    def __init__(self, backend: Backend, limit: int | None = None, *, streams: bool = False) -> None:
        self.backend = backend
        self._limit = limit
        self._streams = streams
        self.used = 0
        self.total = 0  # what may be held now; 0 while the replica is not ready
        self.refresh()

    def refresh(self) -> None:
        """Look at the replica again: it has changed."""
        ready = self.backend.ready
        if ready is None or self.backend.state is not State.READY:
            self.total = 0
            return
        announced = ready.streams if self._streams else ready.slots
        self.total = announced if self._limit is None else min(announced, self._limit)

    @property
    def free(self) -> int:
        return max(0, self.total - self.used)  # a replica that came back with fewer may be overdrawn for a while

    def fits(self, units: int) -> bool:
        """Whether a request of `units` may start; one that is larger than all slots together takes them all."""
        total = self.total
        return total > 0 and total - self.used >= min(units, total)


class Lease:
    """Slots held on one replica, from the grant until `release`."""

    __slots__ = ("_admission", "_slots", "granted", "units")

    def __init__(self, admission: "Admission", slots: Slots, units: int) -> None:
        self._admission: Admission | None = admission
        self._slots = slots
        self.units = units
        self.granted = monotonic()

    @property
    def replica(self) -> Backend:
        return self._slots.backend

    def release(self) -> None:
        """Give the slots back. Idempotent."""
        admission, self._admission = self._admission, None
        if admission is not None:
            admission.give_back(self._slots, self.units, monotonic() - self.granted)


class _Waiter:
    __slots__ = ("future", "units")

    def __init__(self, units: int, future: "asyncio.Future[Lease]") -> None:
        self.units = units
        self.future = future


Pick = Callable[[int], Slots | None]


class Admission:
    """Grants the slots of one route. Lives on the event loop's thread alone.

    `pick` says which replica a request of so many units should start on now, if any: the route's choice. `max_loading`
    is how many may wait while the model is loaded for the first time; None: as many as at any other time.
    """

    def __init__(
        self, replicas: Sequence[Slots], pick: Pick, *, max_queue: int, max_loading: int | None = None
    ) -> None:
        self._replicas = tuple(replicas)
        self._pick = pick
        self._max_queue = max_queue
        self._max_loading = max_queue if max_loading is None else max_loading
        # Ordered sets: the next is the first, and one that leaves is found at once.
        self._queues: dict[Priority, dict[_Waiter, None]] = {"interactive": {}, "batch": {}}
        self._run = 0  # interactive grants since the last batch one, while batch waits
        self._hold = UNMEASURED_HOLD_S  # mean seconds that a unit is held
        self._load_seconds: float | None = None
        self.total = 0  # units that ready replicas take
        self.used = 0  # units that are held
        for slots in self._replicas:
            slots.backend.subscribe(self._changed)
        self._changed()

    @property
    def waiting(self) -> int:
        return len(self._queues["interactive"]) + len(self._queues["batch"])

    def state(self) -> tuple[int, int, int]:
        """(units that ready replicas take, units that are held, requests that wait)"""
        return self.total, self.used, self.waiting

    async def acquire(self, units: int = 1, priority: Priority = "interactive", deadline: float | None = None) -> Lease:
        """A lease on a ready replica, waiting in the queue where none has room, or where the model is loaded for the
        first time. `deadline` is on the monotonic clock.

        Raises Overloaded where the queue is full, QueueDeadline once the deadline has passed, Unavailable where no
        replica is ready, or where none will be any more. Cancelled, it leaves the queue at once.
        """
        if deadline is not None and deadline <= monotonic():
            raise QueueDeadline
        if self.total == 0 and not self._loading:
            raise self._unavailable()
        if not self.waiting and (slots := self._pick(units)):
            return self._grant(slots, units)
        if self.waiting >= (self._max_queue if self.total else self._max_loading):
            raise Overloaded(self.retry_after())
        return await self._wait(units, priority, deadline)

    def retry_after(self) -> int:
        """Whole seconds until everything that waits now should have started, at the measured rate of service."""
        units = 1 + sum(waiter.units for waiter in self._waiters())
        seconds = units * self._hold / max(1, self.total)
        return min(MAX_RETRY_AFTER_S, max(1, math.ceil(seconds)))

    @property
    def restart_seconds(self) -> int:
        """Whole seconds that a lost replica should take to come back: what its last load took."""
        if self._load_seconds is None:
            return LOADING_RETRY_AFTER_S
        return min(MAX_RETRY_AFTER_S, math.ceil(self._load_seconds) + 1)

    def give_back(self, slots: Slots, units: int, held: float) -> None:
        """For `Lease.release` alone."""
        slots.used -= units
        self.used -= units
        self._hold += 0.1 * (held - self._hold)
        self._serve()

    async def _wait(self, units: int, priority: Priority, deadline: float | None) -> Lease:
        loop = asyncio.get_running_loop()
        waiter = _Waiter(units, loop.create_future())
        queue = self._queues[priority]
        queue[waiter] = None
        self._serve()  # what is in front may be a large one of the other priority, with room enough for this one
        timer = None
        if deadline is not None:
            timer = loop.call_later(max(0.0, deadline - monotonic()), _expire, waiter)
        try:
            return await waiter.future
        except asyncio.CancelledError:
            if waiter.future.done() and not waiter.future.cancelled() and waiter.future.exception() is None:
                waiter.future.result().release()  # granted in the same turn of the loop in which the caller left
            raise
        finally:
            if timer is not None:
                timer.cancel()
            if waiter in queue:
                del queue[waiter]
                self._serve()  # it may have been the large one that held up the others

    def _waiters(self) -> Iterator[_Waiter]:
        for queue in self._queues.values():
            yield from queue

    def _next(self) -> tuple[Priority, _Waiter] | None:
        """Strictly in order within a priority: a large request at the front is not passed by small ones for ever."""
        interactive, batch = self._queues["interactive"], self._queues["batch"]
        if interactive and (not batch or self._run < INTERACTIVE_RUN):
            return "interactive", next(iter(interactive))
        if batch:
            return "batch", next(iter(batch))
        return None

    def _serve(self) -> None:
        """Start those that now have room."""
        while (head := self._next()) is not None:
            priority, waiter = head
            if not waiter.future.done():
                slots = self._pick(waiter.units)
                if slots is None:
                    return
                waiter.future.set_result(self._grant(slots, waiter.units))
                self._run = self._run + 1 if priority == "interactive" and self._queues["batch"] else 0
            del self._queues[priority][waiter]

    def _grant(self, slots: Slots, units: int) -> Lease:
        units = min(units, slots.total)
        slots.used += units
        self.used += units
        return Lease(self, slots, units)

    def _changed(self) -> None:
        """A replica came, went, or gave up."""
        for slots in self._replicas:
            slots.refresh()
            if (ready := slots.backend.ready) is not None:
                self._load_seconds = ready.load_seconds
        self.total = sum(slots.total for slots in self._replicas)
        # What was ready once is waited for while it restarts; a first load that failed is told, though it is retried.
        coming = (State.LOADING, State.READY) + ((State.RESTARTING,) if self._load_seconds is not None else ())
        if not any(s.backend.state in coming for s in self._replicas):
            self._refuse(list(self._waiters()), self._unavailable())
        self._serve()
        if self.total:  # those that waited for the model may be more than may wait for a slot
            self._refuse(list(self._waiters())[self._max_queue :], Overloaded(self.retry_after()))

    @property
    def _loading(self) -> bool:
        return any(slots.backend.state is State.LOADING for slots in self._replicas)

    def _refuse(self, waiters: Sequence[_Waiter], error: Exception) -> None:
        for waiter in waiters:
            for queue in self._queues.values():
                queue.pop(waiter, None)
            if not waiter.future.done():
                waiter.future.set_exception(error)

    def _unavailable(self) -> Unavailable:
        reason = next((s.backend.reason for s in self._replicas if s.backend.reason), None)
        return Unavailable(self.restart_seconds, reason)


def _expire(waiter: _Waiter) -> None:
    if not waiter.future.done():
        waiter.future.set_exception(QueueDeadline())
