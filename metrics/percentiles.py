"""Quantiles of the last 1 and 15 minutes and since start, in bounded memory.

A sketch counts values in buckets that grow by a constant factor (DDSketch, Masson et al., VLDB 2019): a quantile is
off by at most `RELATIVE_ERROR` of the order statistic that it estimates. A ring holds one sketch for each `SLOT`
seconds; the window of w seconds covers the last w … w + SLOT.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log
from typing import Generic, TypeVar

RELATIVE_ERROR = 0.01
SMALLEST, LARGEST = 1e-6, 1e6  # values outside are counted at these ends: at most 1,383 buckets
SLOT = 10.0
WINDOWS: Mapping[str, float] = {"1m": 60.0, "15m": 900.0}
QUANTILES = (0.5, 0.9, 0.95, 0.99)

_GAMMA = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_SCALE = 1 / log(_GAMMA)
_LOWEST, _HIGHEST = ceil(log(SMALLEST) * _SCALE), ceil(log(LARGEST) * _SCALE)

T = TypeVar("T")


def bucket(value: float) -> int:
    """The bucket of a value: number i holds those in (gamma^(i-1), gamma^i]."""
    if SMALLEST < value < LARGEST:
        return ceil(log(value) * _SCALE)
    return _LOWEST if value <= SMALLEST else _HIGHEST


@dataclass(frozen=True, slots=True)
class Summary:
    """What one window says of one metric; quantiles in the order of `QUANTILES`, empty where nothing was observed."""

    count: int
    mean: float
    quantiles: tuple[float, ...]


class Sketch:
    """Counts by bucket, and the exact count and sum."""

    __slots__ = ("buckets", "count", "total")

    def __init__(self) -> None:
        self.buckets: dict[int, int] = {}
        self.count = 0
        self.total = 0.0

    def add(self, value: float) -> None:
        index = bucket(value)
        self.buckets[index] = self.buckets.get(index, 0) + 1
        self.count += 1
        self.total += value

    def extend(self, values: Sequence[float]) -> None:
        # `bucket` written out: a request's hundreds of gaps come in one call.
        self._count(Counter([ceil(log(v) * _SCALE) if SMALLEST < v < LARGEST else bucket(v) for v in values]))
        self.count += len(values)
        self.total += sum(values)

    def merge(self, other: "Sketch") -> None:
        self._count(other.buckets)
        self.count += other.count
        self.total += other.total

    def _count(self, buckets: Mapping[int, int]) -> None:
        for index, more in buckets.items():
            self.buckets[index] = self.buckets.get(index, 0) + more

    def quantiles(self, shares: Sequence[float]) -> tuple[float, ...]:
        """For ascending shares q, the smallest value that at least q of all are not above; empty without any.

        Nearest rank: of few values, the high quantiles are the largest one.
        """
        if not self.count:
            return ()
        found: list[float] = []
        ordered = iter(sorted(self.buckets.items()))
        index, seen = next(ordered)
        for share in shares:
            rank = ceil(share * self.count)
            while seen < rank:
                index, more = next(ordered)
                seen += more
            found.append(2 * _GAMMA**index / (_GAMMA + 1))
        return tuple(found)

    def summary(self) -> Summary:
        return Summary(self.count, self.total / self.count if self.count else 0.0, self.quantiles(QUANTILES))


class Ring(Generic[T]):
    """One value for each `SLOT` seconds of the longest window; older ones are handed to `expire`, and forgotten."""

    def __init__(self, make: Callable[[], T], expire: Callable[[T], None], clock: Callable[[], float]) -> None:
        self._make = make
        self._expire = expire
        self._clock = clock
        self._slots: deque[tuple[int, T]] = deque()
        self._length = int(max(WINDOWS.values()) / SLOT) + 1

    def current(self) -> T:
        """The slot of this moment, made on its first use."""
        epoch = int(self._clock() / SLOT)
        if not self._slots or self._slots[-1][0] != epoch:
            self._slots.append((epoch, self._make()))
            if len(self._slots) > self._length:
                self._expire(self._slots.popleft()[1])
        return self._slots[-1][1]

    def last(self, seconds: float) -> Iterator[T]:
        """The slots that touch the last `seconds`."""
        oldest = int(self._clock() / SLOT) - int(seconds / SLOT)
        return (value for epoch, value in self._slots if epoch >= oldest)

    def __iter__(self) -> Iterator[T]:
        """All that has not expired."""
        return (value for _, value in self._slots)


class Percentiles:
    """One metric's sketches: a ring of them, and one of what has left it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._older = Sketch()
        self._ring = Ring(Sketch, self._older.merge, clock)

    def add(self, value: float) -> None:
        self._ring.current().add(value)

    def extend(self, values: Sequence[float]) -> None:
        self._ring.current().extend(values)

    def since_start(self) -> Sketch:
        return _merged([self._older, *self._ring])

    def summaries(self) -> dict[str, Summary]:
        """By window: `1m`, `15m`, `start`."""
        windows = {name: _merged(self._ring.last(seconds)) for name, seconds in WINDOWS.items()}
        return {name: sketch.summary() for name, sketch in (*windows.items(), ("start", self.since_start()))}


def _merged(sketches: Iterable[Sketch]) -> Sketch:
    merged = Sketch()
    for sketch in sketches:
        merged.merge(sketch)
    return merged
