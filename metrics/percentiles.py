"""Quantiles of the last 1 and 15 minutes and since start, in bounded memory.

A sketch counts values in buckets that grow by a constant factor (DDSketch, Masson et al., VLDB 2019): a quantile is
off by at most `RELATIVE_ERROR` of the order statistic that it estimates. A ring holds one sketch for each `SLOT`
seconds; the window of w seconds covers the last w … w + SLOT.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
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


def bucket_counts(values: Sequence[float]) -> Mapping[int, int]:
    """Bucket i holds the values in (gamma^(i-1), gamma^i]."""
    if len(values) == 1:
        return {_bucket(values[0]): 1}
    return Counter([ceil(log(value) * _SCALE) if SMALLEST < value < LARGEST else _bucket(value) for value in values])


def _bucket(value: float) -> int:
    if value <= SMALLEST:
        return _LOWEST
    return ceil(log(value) * _SCALE) if value < LARGEST else _HIGHEST


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

    def add(self, buckets: Mapping[int, int], count: int, total: float) -> None:
        for index, more in buckets.items():
            self.buckets[index] = self.buckets.get(index, 0) + more
        self.count += count
        self.total += total

    def quantiles(self, shares: Sequence[float]) -> tuple[float, ...]:
        """Estimates of the values at rank ⌊q (n - 1)⌋, for ascending shares q; empty where nothing was observed."""
        if not self.count:
            return ()
        found: list[float] = []
        ordered = iter(sorted(self.buckets.items()))
        index, seen = next(ordered)
        for share in shares:
            rank = int(share * (self.count - 1))
            while seen <= rank:
                index, more = next(ordered)
                seen += more
            found.append(2 * _GAMMA**index / (_GAMMA + 1))
        return tuple(found)

    def summary(self) -> Summary:
        return Summary(self.count, self.total / self.count if self.count else 0.0, self.quantiles(QUANTILES))


class Ring(Generic[T]):
    """One value for each `SLOT` seconds of the longest window; older ones are forgotten."""

    def __init__(self, make: Callable[[], T], clock: Callable[[], float]) -> None:
        self._make = make
        self._clock = clock
        self._slots: deque[tuple[int, T]] = deque(maxlen=int(max(WINDOWS.values()) / SLOT) + 1)

    def current(self) -> T:
        """The slot of this moment, made on its first use."""
        epoch = int(self._clock() / SLOT)
        if not self._slots or self._slots[-1][0] != epoch:
            self._slots.append((epoch, self._make()))
        return self._slots[-1][1]

    def last(self, seconds: float) -> Iterator[T]:
        """The slots that touch the last `seconds`."""
        oldest = int(self._clock() / SLOT) - int(seconds / SLOT)
        return (value for epoch, value in self._slots if epoch >= oldest)


class Percentiles:
    """One metric's sketches: since start, and a ring of them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.start = Sketch()
        self._ring = Ring(Sketch, clock)

    def add(self, values: Sequence[float]) -> None:
        buckets, count, total = bucket_counts(values), len(values), sum(values)
        self.start.add(buckets, count, total)
        self._ring.current().add(buckets, count, total)

    def window(self, seconds: float) -> Summary:
        merged = Sketch()
        for sketch in self._ring.last(seconds):
            merged.add(sketch.buckets, sketch.count, sketch.total)
        return merged.summary()

    def summaries(self) -> dict[str, Summary]:
        """By window: `1m`, `15m`, `start`."""
        return {name: self.window(seconds) for name, seconds in WINDOWS.items()} | {"start": self.start.summary()}
