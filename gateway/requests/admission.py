"""Who may start, and when: slots, a bounded queue of two priorities, deadlines.

The queue is here and not in the workers (late binding): a waiter gets whichever replica frees first, priorities and
deadlines hold until the last moment, and a worker that dies loses nothing that has not started.

A request of many units starts with the slots that are free, up to its share; its further units wait behind each other
in the worker, which runs those of all requests in fair turns. Large requests together leave a reserve: whoever comes
with a small one finds a slot.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from time import monotonic

from gateway.backends.base import Backend, State
from gateway.requests.waiting import Queue, Waiter
from pipelines.messages.frames import Priority

# After so many interactive grants in a row, a waiting batch request is next.
INTERACTIVE_RUN = 4

SHARE = 4  # one request holds at most one slot of so many
RESERVE = 5  # large requests and those of the batch class leave one slot of so many to the others

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
        self.large = 0  # of those in use, by large requests
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

    @property
    def share(self) -> int:
        """The most that one request holds."""
        return max(1, self.total // SHARE)

    def room(self, *, large: bool) -> int:
        """Slots that a request may take now."""
        if not large:
            return self.free
        return min(self.free, self.total - self.total // RESERVE - self.large)


class Lease:
    """Slots held on one replica, from the grant until `release`."""

    __slots__ = ("_admission", "granted", "large", "slots", "tenant", "units")

    def __init__(self, admission: "Admission", slots: Slots, units: int, tenant: str, large: bool) -> None:
        self._admission: Admission | None = admission
        self.slots = slots
        self.units = units
        self.tenant = tenant
        self.large = large
        self.granted = monotonic()

    @property
    def replica(self) -> Backend:
        return self.slots.backend

    def release(self) -> None:
        """Give the slots back. Idempotent."""
        admission, self._admission = self._admission, None
        if admission is not None:
            admission.give_back(self, monotonic() - self.granted)


Pick = Callable[[bool], Slots | None]


class Admission:
    """Grants the slots of one route. Lives on the event loop's thread alone.

    `pick` says which replica a request should start on now, if any: the route's choice. It is told whether the request
    is large. `max_loading` is how many may wait while the model is loaded for the first time; None: as many as at any
    other time.
    """

    def __init__(
        self, replicas: Sequence[Slots], pick: Pick, *, max_queue: int, max_loading: int | None = None
    ) -> None:
        self._replicas = tuple(replicas)
        self._pick = pick
        self._max_queue = max_queue
        self._max_loading = max_queue if max_loading is None else max_loading
        self._queues: dict[Priority, Queue[Lease]] = {"interactive": Queue(), "batch": Queue()}
        self._held: dict[str, int] = {}  # slots, by tenant
        self._arrivals = 0
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

    async def acquire(
        self,
        units: int = 1,
        priority: Priority = "interactive",
        deadline: float | None = None,
        *,
        tenant: str = "",
        large: bool = False,
    ) -> Lease:
        """A lease on a ready replica, waiting in the queue where none has room, or where the model is loaded for the
        first time. It has one slot for each unit, or fewer: what is free, and not above the request's share. `deadline`
        is on the monotonic clock.

        Raises Overloaded where the queue is full, QueueDeadline once the deadline has passed, Unavailable where no
        replica is ready, or where none will be any more. Cancelled, it leaves the queue at once.
        """
        if deadline is not None and deadline <= monotonic():
            raise QueueDeadline
        if self.total == 0 and not self._loading:
            raise self._unavailable()
        large = large or priority == "batch"
        # Where there is room for a small one, nobody waits but large ones that have to leave it.
        if not (large and self.waiting) and (slots := self._pick(large)):
            return self._grant(slots, units, tenant, large)
        most = self._max_queue if self.total else self._max_loading
        # The queue keeps a reserve like the slots' own.
        if self.waiting >= most - (most // RESERVE if large else 0):
            raise Overloaded(self.retry_after())
        return await self._wait(units, priority, deadline, tenant, large)

    def retry_after(self) -> int:
        """Whole seconds until everything that waits now should have started, at the measured rate of service."""
        share = max((slots.share for slots in self._replicas), default=1)
        units = 1 + sum(min(waiter.units, share) for waiter in self._waiters())
        seconds = units * self._hold / max(1, self.total)
        return min(MAX_RETRY_AFTER_S, max(1, math.ceil(seconds)))

    @property
    def restart_seconds(self) -> int:
        """Whole seconds that a lost replica should take to come back: what its last load took."""
        if self._load_seconds is None:
            return LOADING_RETRY_AFTER_S
        return min(MAX_RETRY_AFTER_S, math.ceil(self._load_seconds) + 1)

    def give_back(self, lease: Lease, held: float) -> None:
        """For `Lease.release` alone."""
        self._take(lease, -lease.units)
        self._hold += 0.1 * (held - self._hold)
        self._serve()

    async def _wait(self, units: int, priority: Priority, deadline: float | None, tenant: str, large: bool) -> Lease:
        loop = asyncio.get_running_loop()
        self._arrivals += 1
        future: asyncio.Future[Lease] = loop.create_future()
        waiter = Waiter(units, tenant, large, self._arrivals, future)
        queue = self._queues[priority]
        queue.add(waiter)
        timer = None
        if deadline is not None:
            timer = loop.call_later(max(0.0, deadline - monotonic()), _expire, waiter)
        try:
            return await future
        except asyncio.CancelledError:
            if waiter.future.done() and not waiter.future.cancelled() and waiter.future.exception() is None:
                waiter.future.result().release()  # granted in the same turn of the loop in which the caller left
            raise
        finally:
            if timer is not None:
                timer.cancel()
            queue.discard(waiter)

    def _next(self) -> tuple[Priority, Waiter[Lease], Slots] | None:
        """Who starts now, and where. In the order of the queue, but large ones that have to leave the reserve free are
        passed by small ones."""
        order: tuple[Priority, Priority] = ("interactive", "batch")
        if self._run >= INTERACTIVE_RUN:
            order = ("batch", "interactive")
        for priority in order:
            for waiter in self._queues[priority].heads(self._held):
                if (slots := self._pick(waiter.large)) is not None:
                    return priority, waiter, slots
        return None

    def _serve(self) -> None:
        """Start those that now have room."""
        while self.waiting and self.used < self.total and (found := self._next()) is not None:
            priority, waiter, slots = found
            if waiter.future.done():  # it is on its way out
                self._queues[priority].discard(waiter)
                continue
            self._queues[priority].serve(waiter)
            waiter.future.set_result(self._grant(slots, waiter.units, waiter.tenant, waiter.large))
            self._run = self._run + 1 if priority == "interactive" and self._queues["batch"] else 0

    def _grant(self, slots: Slots, units: int, tenant: str, large: bool) -> Lease:
        lease = Lease(self, slots, min(units, slots.share, slots.room(large=large)), tenant, large)
        self._take(lease, lease.units)
        return lease

    def _take(self, lease: Lease, units: int) -> None:
        """Of a lease's slots; negative where it gives them back."""
        lease.slots.used += units
        if lease.large:
            lease.slots.large += units
        self.used += units
        held = self._held.get(lease.tenant, 0) + units
        if held:
            self._held[lease.tenant] = held
        else:
            self._held.pop(lease.tenant, None)

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
            self._refuse(self._waiters(), self._unavailable())
        self._serve()
        if self.total:  # those that waited for the model may be more than may wait for a slot
            self._refuse(self._waiters()[self._max_queue :], Overloaded(self.retry_after()))

    @property
    def _loading(self) -> bool:
        return any(slots.backend.state is State.LOADING for slots in self._replicas)

    def _waiters(self) -> list[Waiter[Lease]]:
        """Interactive ones first, then in order of arrival."""
        return [waiter for queue in self._queues.values() for waiter in sorted(queue, key=lambda each: each.number)]

    def _refuse(self, waiters: Sequence[Waiter[Lease]], error: Exception) -> None:
        for waiter in waiters:
            for queue in self._queues.values():
                queue.discard(waiter)
            if not waiter.future.done():
                waiter.future.set_exception(error)

    def _unavailable(self) -> Unavailable:
        reason = next((s.backend.reason for s in self._replicas if s.backend.reason), None)
        return Unavailable(self.restart_seconds, reason)


def _expire(waiter: Waiter[Lease]) -> None:
    if not waiter.future.done():
        waiter.future.set_exception(QueueDeadline())
