"""The threads that turn requests into work beside the engine: templates, tokens, decoded media."""

import logging
import os
import sys
import threading
from time import monotonic
from typing import Generic

from pipelines.base import InvalidRequest, Pipeline, W
from pipelines.messages.base import Request
from pipelines.runtime.backlog import Backlog
from pipelines.runtime.inbox import Inbox, OpenRequest, Prepared, Refused

log = logging.getLogger(__name__)

# A long prompt that is tokenised takes a core for a second. Beside a step that needs all cores it gets a tenth of one:
# who is answered already does not wait for who comes.
NICENESS = 10


class PreparePool(Generic[W]):
    """`size` daemon threads over one queue, small requests first; one of them is kept for those. A thread takes one
    item of one request at a time, so that a long stream does not keep it from the others. What is brief is prepared by
    the thread that brings it."""

    def __init__(self, inbox: Inbox[W]) -> None:
        self._inbox = inbox
        self._backlog = Backlog()
        self._pipeline: Pipeline[Request, W] | None = None

    def start(self, pipeline: Pipeline[Request, W], size: int) -> None:
        """Requests put before this wait for it."""
        for number in range(size):
            large = number > 0 or size == 1
            threading.Thread(target=self._run, args=(pipeline, large), name=f"prepare-{number}", daemon=True).start()
        self._pipeline = pipeline

    def put(self, request: OpenRequest) -> None:
        """A request that has something to prepare."""
        pipeline, item = self._pipeline, request.first()
        if pipeline is None or isinstance(item, bytes) or not pipeline.brief(item):
            self._queue(request)
        else:
            self._advance(pipeline, request)

    def _run(self, pipeline: Pipeline[Request, W], large: bool) -> None:
        # A thread's own niceness is Linux's; elsewhere it is the process's.
        if sys.platform == "linux":
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        while True:
            self._advance(pipeline, self._backlog.take(large=large))

    def _advance(self, pipeline: Pipeline[Request, W], request: OpenRequest) -> None:
        """Prepare one item; what else has come meanwhile is for the pool."""
        if not request.closed:
            outcome = _prepare(pipeline, request)
            if isinstance(outcome, Refused):
                request.closed = True  # chunks queued behind it have nothing to join
            self._inbox.put(outcome)
        if request.advance():
            self._queue(request)

    def _queue(self, request: OpenRequest) -> None:
        item = request.first()
        if isinstance(item, bytes):  # a stream may have been open for hours, its chunk waits from now on
            self._backlog.put(request, len(item), since=monotonic())
        else:
            effort = self._pipeline.effort(item) if self._pipeline is not None else 0
            self._backlog.put(request, effort, since=request.ticket.received)


def _prepare(pipeline: Pipeline[Request, W], request: OpenRequest) -> Prepared[W] | Refused:
    ticket = request.ticket
    if ticket.deadline is not None and monotonic() >= ticket.deadline:
        return Refused(request, "deadline_exceeded", "the deadline passed before the request was prepared")
    item = request.first()
    try:
        if isinstance(item, bytes):
            return Prepared(request, pipeline.feed(ticket, item), opening=False)
        return Prepared(request, pipeline.prepare(ticket, item), opening=True)
    except InvalidRequest as refusal:
        return Refused(request, refusal.code, refusal.message, refusal.param)
    except Exception:  # whatever a tokenizer or a decoder raises is this request's failure alone
        log.exception("request %s could not be prepared", ticket.id)
        return Refused(request, "internal_error", "the request could not be prepared")
