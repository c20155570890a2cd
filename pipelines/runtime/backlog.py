"""Requests that wait to be prepared: the small ones first, and nobody for ever."""

import threading
from heapq import heappop, heappush
from itertools import count

from pipelines.runtime.inbox import OpenRequest

# Seconds that a byte to be read is worth in the order of preparing: a request is passed by smaller ones, until it has
# waited for so much longer than they have. Tokenising takes a tenth of it.
PATIENCE_S = 1e-5
BATCH_S = 2.0  # that a request of the batch class is worth
LARGE = 64 * 1024  # bytes: more takes too long for all threads to be at such requests


class Backlog:
    """Any thread puts and takes."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._numbers = count()  # of requests that are due together, the first to come
        self._small: list[tuple[float, int, OpenRequest]] = []  # heaps
        self._large: list[tuple[float, int, OpenRequest]] = []

    def put(self, request: OpenRequest, effort: int, since: float) -> None:
        """`effort`: bytes to be read; `since`: the monotonic seconds from which it waits."""
        due = since + effort * PATIENCE_S + (BATCH_S if request.ticket.priority == "batch" else 0.0)
        with self._changed:
            heappush(self._large if effort > LARGE else self._small, (due, next(self._numbers), request))
            self._changed.notify_all()

    def take(self, *, large: bool) -> OpenRequest:
        """The next one, waited for; a large one only for a thread that may be at it for long."""
        with self._changed:
            while True:
                heap = self._small
                if large and self._large and (not heap or self._large[0] < heap[0]):
                    heap = self._large
                if heap:
                    return heappop(heap)[2]
                self._changed.wait()
