"""One request's life: slot -> open -> events -> close, exactly once, whatever happens. Knows no wire format."""

import asyncio
from collections.abc import Sequence
from time import monotonic

from msgspec import Struct

from gateway import errors
from gateway.backends.base import BackendError, Call, Session
from gateway.errors import ApiError
from gateway.requests import refusals
from gateway.requests.admission import Lease
from gateway.requests.routing import Route
from gateway.uploads.spool import SpoolFile
from metrics.registry import Registry
from metrics.timeline import Timeline
from pipelines.messages.audio import Media
from pipelines.messages.base import Request
from pipelines.messages.frames import Accepted, Done, Event, Failed, Priority
from pipelines.messages.text import ChoiceDone

# A request of more is large: it will be at work for long, and leaves a reserve of slots to others.
SMALL_UNITS = 4
SMALL_BODY = 8 * 1024  # bytes: two thousand tokens
SMALL_FILES = 2 * 1024 * 1024  # bytes: a minute of speech


class Job(Struct, frozen=True):
    """A valid request, ready to be run."""

    id: str
    route: Route
    request: Request
    units: int  # slots that it asks for
    timeout: float  # seconds from its arrival to its end
    body: bytes = b""
    priority: Priority = "interactive"
    files: Sequence[SpoolFile] = ()  # uploads that end with it
    tenant: str = ""  # whose it is: slots are shared fairly between tenants

    @property
    def large(self) -> bool:
        return (
            self.units > SMALL_UNITS
            or len(self.body) > SMALL_BODY
            or (len(self.files) > 0 and sum(file.size for file in self.files) > SMALL_FILES)
        )


class Exchange:
    """A job between its arrival and its end. Belongs to one task, which `interrupt` cancels from outside.

    Timers cost nothing per event: one handle is armed for the earliest limit, and looks when it fires whether that
    limit still stands.
    """

    def __init__(self, job: Job, timeline: Timeline, registry: Registry) -> None:
        self.job = job
        self.timeline = timeline
        self._registry = registry
        self._deadline = timeline.arrival + job.timeout
        self._task: asyncio.Task[object] | None = None
        self._cause: ApiError | None = None
        self._lease: Lease | None = None
        self._session: Session | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waiting_since: float | None = None  # None: it is the client that is waited for
        self._output = False  # whether the work has said anything but that it was accepted
        self._closed = False

    @property
    def silent(self) -> bool:
        """Whether it is the model that is waited for, and not the client."""
        return self._waiting_since is not None

    async def open(self) -> None:
        """Wait for a slot and send the work off. Raises ApiError."""
        self._task = asyncio.current_task()
        job, timeline = self.job, self.timeline
        timeline.queued = monotonic()
        lease = await self._admitted()
        self._lease = lease
        timeline.slot = now = monotonic()
        call = Call(job.id, job.request, job.body, job.priority, self._deadline - now, job.tenant)
        try:
            session = lease.replica.open(call, timeline)
        except BackendError as error:
            raise errors.backend_error(error) from error
        self._session = session
        session.ended.add_done_callback(lambda _: lease.release())
        self._waiting_since = now
        self._arm(now)

    async def next(self) -> Sequence[Event]:
        """The next events, all that have come; never empty. The last list ends with `Done` or `Failed`."""
        assert self._session is not None
        began = self._output
        if began:
            self._waiting_since = monotonic()
        batch = await self._session.read()
        for event in batch:
            match event:
                case Accepted() | Failed():
                    continue
                case ChoiceDone(reason=reason):
                    self.timeline.outcome = reason
                case Done():
                    self.timeline.outcome = self.timeline.outcome or "stop"  # of what has no choices
                case Media(seconds=seconds):
                    self.timeline.media_seconds = seconds
            self._output = True
        if self._output:
            self._waiting_since = None
            if not began and not isinstance(batch[-1], Done | Failed):
                self._arm(monotonic())  # from here on the gaps count, and they may be the shorter limit
        return batch

    def interrupt(self, error: ApiError) -> None:
        """End the exchange from outside its task: whatever it awaits is cancelled, and `caught` then says why."""
        if self._task is not None and self._cause is None and not self._closed:
            self._cause = error
            self._task.cancel()

    def caught(self) -> ApiError | None:
        """In the handler of a CancelledError: why, if `interrupt` did it; None if the task itself was cancelled."""
        if self._cause is not None and self._task is not None:
            self._task.uncancel()
        return self._cause

    def failed(self, failure: Failed) -> ApiError:
        """A failure that the work ended with, as the caller sees it."""
        return refusals.failed(self.job.route, failure, began=self._output)

    def close(self, outcome: str | None = None) -> None:
        """Let go of everything and hand the timeline over. Idempotent; slots return when the backend has let go too.

        `outcome` is what ended it, where that was not the model.
        """
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._session is not None:
            self._session.close()
        elif self._lease is not None:
            self._lease.release()
        for file in self.job.files:
            file.unlink()
        self.timeline.closed = monotonic()
        if outcome is not None:
            self.timeline.outcome = outcome
        self._registry.request(self.job.route.name, self.job.route.kind, self.timeline)

    async def _admitted(self) -> Lease:
        job = self.job
        slots = job.route.admission.acquire(job.units, job.priority, self._deadline, tenant=job.tenant, large=job.large)
        return await refusals.granted(job.route, slots, self._registry)

    def _arm(self, now: float) -> None:
        """Set the timer for the earliest of the limits."""
        due = min(self._deadline, (self._waiting_since or now) + self._patience)
        if self._timer is not None:
            self._timer.cancel()
        # Loops round to milliseconds: a timer that comes a moment early must not spin.
        self._timer = asyncio.get_running_loop().call_later(max(0.002, due - now), self._tick)

    @property
    def _patience(self) -> float:
        settings = self.job.route.settings
        return settings.gap_timeout_s if self._output else settings.first_event_timeout_s

    def _tick(self) -> None:
        now = monotonic()
        if now >= self._deadline:
            self.interrupt(errors.deadline_exceeded())
        elif self._waiting_since is not None and now >= self._waiting_since + self._patience:
            self.interrupt(errors.deadline_exceeded(f"The model said nothing for {self._patience:g} s."))
        else:
            self._arm(now)
