"""Batches under way: one after the other, or as many at once as the encoder has streams."""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from time import monotonic

from models.embedder import Vectors as Rows
from pipelines.embedding.batching import Input

Batch = Sequence[Input]

POLLED_S = 1.0


@dataclass(frozen=True, slots=True)
class Run:
    """One that has ended. `outcome` is what the encoder gave, or raised."""

    batch: Batch
    began: float  # monotonic seconds
    ended: float
    outcome: Rows | Exception


class Runs:
    """Belongs to the engine thread. With one stream a batch is run where it is started, without another thread."""

    def __init__(self, call: Callable[[Batch], Rows], streams: int) -> None:
        self._call = call
        self._streams = streams
        self._threads = ThreadPoolExecutor(streams, "stream") if streams > 1 else None
        self._running: dict[Future[Run], Batch] = {}
        self._last_start = 0.0

    def __bool__(self) -> bool:
        return bool(self._running)

    @property
    def room(self) -> bool:
        return len(self._running) < self._streams

    @property
    def inputs(self) -> int:
        return sum(map(len, self._running.values()))

    def start(self, batch: Batch) -> None:
        self._last_start = monotonic()
        if self._threads is not None:
            self._running[self._threads.submit(self.run, batch)] = batch
        else:
            done: Future[Run] = Future()
            done.set_result(self.run(batch))
            self._running[done] = batch

    def ended(self, poll: float) -> Run | None:
        """One that has ended. None after `poll` seconds, where another could be started meanwhile.

        A run that takes long is waited for to its end, so that the time of its step tells of it.
        """
        wait_on = self.room and monotonic() < self._last_start + POLLED_S
        done, _ = wait(self._running, poll if wait_on else None, FIRST_COMPLETED)
        if not done:
            return None
        first = done.pop()
        del self._running[first]
        return first.result()

    def run(self, batch: Batch) -> Run:
        """On the calling thread."""
        began = monotonic()
        try:
            outcome: Rows | Exception = self._call(batch)
        except Exception as error:  # noqa: BLE001 (it is the batch that fails)
            outcome = error
        return Run(batch, began, monotonic(), outcome)
