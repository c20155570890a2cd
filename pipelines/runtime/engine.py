"""The engine thread: it alone touches the model. Take the inbox, run a step, send what the step said."""

import logging
from collections.abc import Iterable, Sequence
from math import inf
from time import monotonic
from typing import Generic

from pipelines.base import Pipeline, StepFailed, StepResult, W
from pipelines.messages.base import Request
from pipelines.messages.frames import Abort, Accepted, Done, Drain, ErrorCode, Event, Failed, FromWorker, Step
from pipelines.runtime.faults import device_is_lost
from pipelines.runtime.inbox import Command, Inbox, OpenRequest, OpenRequests, Prepared, Refused
from pipelines.runtime.ipc import WorkerChannel
from pipelines.runtime.reader import Reader, StepClock

log = logging.getLogger(__name__)

STATS_EVERY = 1.0  # seconds, while something changes


class Engine(Generic[W]):
    """Sends every terminal event of a worker, and so is what makes them come exactly once.

    Events and work of requests that are no longer open are dropped here, whichever thread they come from.
    """

    def __init__(
        self,
        pipeline: Pipeline[Request, W],
        reader: Reader[W],
        inbox: Inbox[W],
        requests: OpenRequests,
        channel: WorkerChannel,
        clock: StepClock,
    ) -> None:
        self._pipeline = pipeline
        self._reader = reader
        self._inbox = inbox
        self._requests = requests
        self._channel = channel
        self._clock = clock
        self._draining = False
        self._next_deadline = inf  # no admitted request's deadline is earlier; it may be of one that has ended
        self._changed = False  # since the last Stats
        self._stats_due = 0.0

    def run(self) -> None:
        """Until a Drain has been followed by the end of the last request.

        Raises what a step raises other than StepFailed, and a StepFailed that cost the device: the model's state is
        unknown then, and the process has to end.
        """
        while not (self._draining and not self._requests):
            answers = self._take_inbox()
            self._send(answers, self._step())
            self._report()

    # --- the inbox ----------------------------------------------------------------------------------------------------

    def _take_inbox(self) -> list[Event]:
        commands = self._wait()
        events: list[Event] = []
        for command in commands:
            match command:
                case Prepared():
                    self._admit(command, events)
                case Refused(request=request, code=code, message=message, param=param):
                    self._pipeline.abort(request.ticket.id)  # a stream whose later chunk was refused runs already
                    self._fail(request, code, message, events, param)
                case Abort(id=id):
                    self._abort(id, events)
                case Drain():
                    self._draining = True
        if self._next_deadline <= monotonic():
            self._expire(events)
        self._changed = self._changed or bool(commands)
        return events

    def _wait(self) -> list[Command[W]]:
        if self._pipeline.busy:
            self._reader.listen(0)
        else:
            self._clock.stop()
            if not self._requests:
                self._next_deadline = inf
            wake = min(self._next_deadline, self._stats_due if self._changed else inf)
            self._reader.listen(None if wake == inf else max(wake - monotonic(), 0.0))
        self._clock.start()
        return self._inbox.take()

    def _admit(self, prepared: Prepared[W], events: list[Event]) -> None:
        request, ticket = prepared.request, prepared.request.ticket
        if self._requests.get(ticket.id) is not request:
            return
        now = monotonic()
        if ticket.deadline is not None:
            if now >= ticket.deadline:
                self._fail(request, "deadline_exceeded", "the deadline passed before the request was started", events)
                return
            self._next_deadline = min(self._next_deadline, ticket.deadline)
        try:
            self._pipeline.admit(prepared.works)
        except Exception:
            log.exception("request %s could not be admitted", ticket.id)
            self._pipeline.abort(ticket.id)
            self._fail(request, "internal_error", "the request could not be admitted", events)
            return
        if prepared.opening:
            prompt_tokens = sum(work.prompt_tokens for work in prepared.works)
            events.append(Accepted(ticket.id, prompt_tokens, now - ticket.received))

    def _abort(self, id: str, events: list[Event]) -> None:
        request = self._requests.get(id)
        if request is not None:
            self._pipeline.abort(id)
            self._fail(request, "cancelled", "the request was cancelled", events)

    def _expire(self, events: list[Event]) -> None:
        now = monotonic()
        self._next_deadline = inf
        for request in list(self._requests.values()):
            deadline = request.ticket.deadline
            if deadline is None:
                continue
            if deadline <= now:
                self._pipeline.abort(request.ticket.id)
                self._fail(request, "deadline_exceeded", "the deadline passed before the request was finished", events)
            else:
                self._next_deadline = min(self._next_deadline, deadline)

    def _fail(
        self, request: OpenRequest, code: ErrorCode, message: str, events: list[Event], param: str | None = None
    ) -> None:
        if self._requests.get(request.ticket.id) is request:
            self._close(request)
            events.append(Failed(request.ticket.id, code, message, param))

    def _close(self, request: OpenRequest) -> None:
        request.closed = True
        del self._requests[request.ticket.id]

    # --- the step -----------------------------------------------------------------------------------------------------

    def _step(self) -> list[StepResult]:
        if not self._pipeline.busy:
            return []
        self._changed = True
        try:
            return [self._pipeline.step()]
        except StepFailed as failure:
            if device_is_lost(failure):
                raise
            log.exception("a step of %d requests failed; each is tried alone", len(failure.request_ids))
            suspects = failure.request_ids
        return [self._step_alone(id) for id in suspects]

    def _step_alone(self, id: str) -> StepResult:
        """Run one request of a failed step by itself: the others' faults are not its own."""
        if id not in self._requests:
            return StepResult()
        self._clock.start()
        try:
            return self._pipeline.step(only=id)
        except StepFailed as failure:
            if device_is_lost(failure):
                raise
            log.exception("request %s breaks its step", id)
            self._pipeline.abort(id)
            return StepResult([Failed(id, "internal_error", "the model could not run this request")])

    # --- sending ------------------------------------------------------------------------------------------------------

    def _send(self, answers: list[Event], results: Sequence[StepResult]) -> None:
        """What the inbox and the step gave rise to, in one write: each write wakes the gateway, so answers to new
        requests come with the step that is the first to have them."""
        frames: list[FromWorker] = []
        events = answers
        for result in results:
            self._collect(result.events, events)
            if events or result.report is not None:
                frames.append(Step(events, result.report))
            events = []
        if events:
            frames.append(Step(events))
        if frames:
            self._channel.send(*frames)

    def _collect(self, said: Iterable[Event], events: list[Event]) -> None:
        """Events of requests that are open; a terminal one closes its request."""
        for event in said:
            request = self._requests.get(event.id)
            if request is None:
                continue
            if isinstance(event, Done | Failed):
                self._close(request)
            events.append(event)

    def _report(self) -> None:
        if self._changed and monotonic() >= self._stats_due:
            self._channel.send(self._pipeline.stats())
            self._changed = False
            self._stats_due = monotonic() + STATS_EVERY
