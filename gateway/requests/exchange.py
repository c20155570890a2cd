"""One request's life: slot -> open -> events -> close, exactly once, whatever happens. Knows no wire format.

A live stream is such a request, too: its client adds input while it runs (`gateway.requests.live`).
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from time import monotonic
from types import TracebackType
from typing import Self

from msgspec import Struct

from gateway import errors
from gateway.backends.base import BackendError, Call, Session
from gateway.errors import ApiError
from gateway.requests.admission import Admission, Lease, Overloaded, QueueDeadline, Unavailable
from gateway.requests.routing import Route
from gateway.uploads.spool import SpoolFile
from metrics.metric import Histogram
from metrics.registry import Registry
from metrics.timeline import Timeline
from pipelines.messages.base import Item, Request, Said
from pipelines.messages.frames import Accepted, Done, Event, Failed, Priority

CANCELLED = "cancelled"  # the outcome of a request that the server itself gave up
CLIENT_LEFT = "client_left"  # of one whose client closed the connection
INTERNAL_ERROR = "internal_error"  # of one that broke in the gateway

# A request of more is large: it will be at work for long, and leaves a reserve of slots to others.
SMALL_UNITS = 4
SMALL_BODY = 8 * 1024  # bytes: two thousand tokens
SMALL_FILES = 2 * 1024 * 1024  # bytes: a minute of speech, a picture


class Terms(Struct, frozen=True):
    """How a request is to be run, as far as its key and its model allow."""

    timeout: float  # seconds from its arrival to its end; of a live stream to its start
    priority: Priority = "interactive"
    tenant: str = ""  # whose it is: slots are shared fairly between tenants


class Job(Struct, frozen=True):
    """A valid request, ready to be run."""

    id: str
    route: Route
    request: Request
    units: int  # slots that it asks for
    terms: Terms
    body_bytes: int = 0  # what its client sent, files and images excepted
    files: Sequence[SpoolFile] = ()  # uploads that end with it
    images: Sequence[int] = ()  # bytes of each that came inside its body, or from where its body said
    live: bool = False  # its client feeds it while it runs, and may be quiet for as long as it likes

    @property
    def admission(self) -> Admission:
        return self.route.streams if self.live else self.route.admission

    @property
    def large(self) -> bool:
        return (
            max(self.units, len(self.images)) > SMALL_UNITS
            or self.body_bytes > SMALL_BODY
            or (len(self.files) > 0 and sum(file.size for file in self.files) > SMALL_FILES)
            or (len(self.images) > 0 and sum(self.images) > SMALL_FILES)
        )


class Exchange:
    """A job between its arrival and its end. `with` closes it by whatever ends the block.

    `interrupt` ends it from outside: the task that opened it is cancelled, and what it awaits raises the ApiError that
    `interrupt` was called with.

    Timers cost nothing per event: one handle is armed for the earliest limit, and looks when it fires whether that
    limit still stands.
    """

    def __init__(self, job: Job, timeline: Timeline, registry: Registry) -> None:
        self.route = job.route
        self.timeline = timeline
        self._job: Job | None = job  # until it is opened: what a client wrote is not kept while it is answered
        self._admission = job.admission
        self._files = job.files
        self._live = job.live
        self._registry = registry
        self._deadline = timeline.arrival + job.terms.timeout
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

    @property
    def over(self) -> bool:
        """Whether nobody takes input any more."""
        return self._closed or self._session is None or self._session.ended.done()

    # --- from its arrival to its end ----------------------------------------------------------------------------------

    async def open(self) -> None:
        """Wait for a slot and send the work off. Raises ApiError, and is closed then."""
        self._task = asyncio.current_task()
        job, self._job, timeline = self._job, None, self.timeline
        assert job is not None
        timeline.queued = monotonic()
        try:
            self._lease = lease = await self._admitted(job)
            timeline.slot = now = monotonic()
            left = None if job.live else self._deadline - now
            call = Call(job.id, job.request, job.terms.priority, left, job.terms.tenant)
            session = lease.replica.open(call, timeline)
        except BackendError as error:
            self.close(error.code)
            raise errors.backend_error(error) from error
        except BaseException as error:
            self._end(error)
            raise
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
                case Done():
                    self.timeline.outcome = self.timeline.outcome or "stop"  # of what does not say how it ended
            self._output = True
        if self._output:
            self._waiting_since = None
            if not began and not isinstance(batch[-1], Done | Failed):
                self._arm(monotonic())  # from here on the gaps count, and they may be the shorter limit
        return batch

    async def events(self) -> AsyncIterator[Said | Done]:
        """The same one by one, `Done` as the last. Raises ApiError where the work failed."""
        while True:
            for event in await self.next():
                match event:
                    case Accepted():
                        pass
                    case Failed():
                        error = self.failed(event)
                        self.close(outcome(error))
                        raise error
                    case Done():
                        yield event
                        return
                    case _:
                        yield event

    async def send(self, item: Item) -> None:
        """More input of a live stream. Waits where the backend does not keep up; nothing, once it is over."""
        if self._session is not None:
            await self._session.send(item)

    def failed(self, failure: Failed) -> ApiError:
        """A failure that the work ended with, as the caller sees it."""
        if failure.code == "worker_lost":
            return errors.worker_lost(began=self._output, retry_after=self._admission.restart_seconds)
        return errors.backend_error(failure)

    def sample(self, metric: Histogram, value: float) -> None:
        """One more sample, before the exchange is closed."""
        self._registry.sample(self.route.name, self.route.kind, metric, value)

    # --- its end ------------------------------------------------------------------------------------------------------

    def interrupt(self, error: ApiError) -> None:
        """End the exchange from outside its task, with `error`."""
        if self._task is not None and self._cause is None and not self._closed:
            self._cause = error
            self._task.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        self._end(error)

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
        for file in self._files:
            file.unlink()
        self.timeline.closed = monotonic()
        self.timeline.outcome = outcome or self.timeline.outcome or CANCELLED
        self._registry.request(self.route.name, self.route.kind, self.timeline)

    def _end(self, error: BaseException | None) -> None:
        """Close it by what ended it. Raises what it was interrupted with, if that is how it ended."""
        cause = self._cause
        if cause is not None and isinstance(error, asyncio.CancelledError):
            assert self._task is not None
            self._task.uncancel()
            self.close(outcome(cause))
            raise cause from None
        self.close(outcome(error))

    async def _admitted(self, job: Job) -> Lease:
        """The job's slots, once its model is loaded. Raises ApiError (429, 503, 504), which is counted."""
        route, terms = self.route, job.terms
        route.wake()
        try:
            return await self._admission.acquire(
                job.units, terms.priority, self._deadline, tenant=terms.tenant, large=job.large
            )
        except Overloaded as refusal:
            error = errors.overloaded(refusal.retry_after)
        except QueueDeadline:
            error = errors.deadline_exceeded("The deadline passed while the request was waiting for a slot.")
        except Unavailable as refusal:
            error = errors.model_unavailable(route.name, refusal.reason, retry_after=refusal.retry_after)
        self._registry.rejected(route.name, route.kind, error.code or "")
        raise error

    # --- its limits ---------------------------------------------------------------------------------------------------

    def _arm(self, now: float) -> None:
        """Set the timer for the earliest of the limits."""
        if self._live:
            return
        due = min(self._deadline, (self._waiting_since or now) + self._patience)
        if self._timer is not None:
            self._timer.cancel()
        # Loops round to milliseconds: a timer that comes a moment early must not spin.
        self._timer = asyncio.get_running_loop().call_later(max(0.002, due - now), self._tick)

    @property
    def _patience(self) -> float:
        settings = self.route.settings
        return settings.gap_timeout_s if self._output else settings.first_event_timeout_s

    def _tick(self) -> None:
        now = monotonic()
        if now >= self._deadline:
            self.interrupt(errors.deadline_exceeded())
        elif self._waiting_since is not None and now >= self._waiting_since + self._patience:
            self.interrupt(errors.deadline_exceeded(f"The model said nothing for {self._patience:g} s."))
        else:
            self._arm(now)


def outcome(error: BaseException | None) -> str | None:
    """What an exchange that `error` ends came to; None: that is the model's to say."""
    match error:
        case None:
            return None
        case ApiError():
            if error.status == errors.CLIENT_CLOSED_REQUEST:
                return CLIENT_LEFT
            return error.code or INTERNAL_ERROR
        case asyncio.CancelledError():
            return CANCELLED
        case _:
            return INTERNAL_ERROR
