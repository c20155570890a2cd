"""Batches under way: one after the other, or as many at once as the encoder has streams."""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from time import monotonic

from models.embedder import Vectors as Rows
from pipelines.embedding.batching import Input

Batch = Sequence[Input]


@dataclass(frozen=True, slots=True)
class Run:
    """One that has ended. `outcome` is what the encoder gave, or raised."""

    batch: Batch
    began: float  # monotonic seconds
    ended: float
    outcome: Rows | Exception


class Runs:
    """Belongs to the engine thread."""

    def __init__(self, call: Callable[[Batch], Rows], streams: int) -> None:
        self._call = call
        self._streams = streams
        self._threads = ThreadPoolExecutor(streams, "stream") if streams > 1 else None
        self._running: dict[Future[Run], Batch] = {}

    def __bool__(self) -> bool:
        return bool(self._running)

    @property
    def room(self) -> bool:
        return len(self._running) < self._streams

    @property
    def inputs(self) -> int:
        return sum(map(len, self._running.values()))

    def start(self, batch: Batch, *, alone: bool) -> None:
        """`alone`: there is none to run beside it. Then it is run here and now, without waking another thread."""
        if self._threads is None or (alone and not self._running):
            done: Future[Run] = Future()
            done.set_result(self.run(batch))
            self._running[done] = batch
        else:
            self._running[self._threads.submit(self.run, batch)] = batch

    def ended(self) -> Run:
        """The first that has ended, waited for."""
        done, _ = wait(self._running, return_when=FIRST_COMPLETED)
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
