"""Batches under way: as many at once as pay, and where the encoder allows it a small one beside large ones."""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from time import monotonic

from models.embedder.embedder import Vectors as Rows
from pipelines.embedding.batching import LARGE, SMALL, Input

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

    def __init__(self, call: Callable[[Batch], Rows], streams: int, concurrency: int) -> None:
        """`streams` batches of a class at once, `concurrency` of both."""
        self._call = call
        self._streams = streams
        self._concurrency = concurrency
        self._threads = ThreadPoolExecutor(concurrency, "stream") if concurrency > 1 else None
        self._running: dict[Future[Run], Batch] = {}

    def __bool__(self) -> bool:
        return bool(self._running)

    def room(self, *, expects_small: bool) -> list[bool]:
        """The classes that another batch may be of. With `expects_small`, large ones leave a place for small ones."""
        if len(self._running) == self._concurrency:
            return []
        large = sum(_large(batch) for batch in self._running.values())
        places = max(1, min(self._streams, self._concurrency - expects_small))
        fits = {SMALL: len(self._running) - large < self._streams, LARGE: large < places}
        return [each for each in fits if fits[each]]

    @property
    def inputs(self) -> int:
        return sum(map(len, self._running.values()))

    def start(self, batch: Batch, *, alone: bool) -> None:
        """`alone`: nothing else waits. Then a small one is run here and now, without waking another thread."""
        if self._threads is None or (alone and not _large(batch)):
            done: Future[Run] = Future()
            done.set_result(self.run(batch))
            self._running[done] = batch
        else:
            self._running[self._threads.submit(self.run, batch)] = batch

    def ended(self, timeout: float) -> Run | None:
        """The first that has ended, waited for up to `timeout` seconds. One that was run here and now has."""
        done, _ = wait(self._running, timeout, FIRST_COMPLETED)
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


def _large(batch: Batch) -> bool:
    return batch[0].owner.large
