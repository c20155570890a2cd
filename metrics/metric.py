"""The shape of a metric's definition."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NewType

PREFIX = "gateway_"
MAX_LABEL_VALUES = 64  # of a metric's own labels, for one model; what comes after is counted as OTHER
OTHER = "other"
ROWS = ("1", "2", "3-4", "5-8", "9-16", "17-32", "33+")  # of a step, as a label: ranges that end at powers of two

# Names under which a worker tells its numbers. Only a definition makes one, so that none is told that nobody knows.
CounterSeries = NewType("CounterSeries", str)
GaugeSeries = NewType("GaugeSeries", str)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Metric:
    """One metric. Every series has the labels `model` and `pipeline`, then `labels`, whose values are joined by ":".

    Compared by identity: each is defined once, and is a key of hot dictionaries. `note` says what a reader must know
    beside the help.
    """

    type: ClassVar[str]  # as Prometheus has it

    name: str
    unit: str  # base units: seconds, bytes; else what is counted
    help: str
    note: str = ""
    labels: tuple[str, ...] = ()
    values: tuple[str, ...] = ()  # the labels' values where all are known: their series exist from the start

    @property
    def key(self) -> str:
        """The name under which a worker's `Stats` and `/v1/metrics` carry it."""
        return self.name.removeprefix(PREFIX).removesuffix("_total")

    @property
    def document(self) -> str:
        """The help text."""
        return f"{self.help}.{f' {self.note}' if self.note else ''}"

    def label_values(self, value: str) -> list[str]:
        """One for each of `labels`."""
        if not self.labels:
            return []
        found = value.split(":", len(self.labels) - 1)
        return [*found, *[OTHER] * (len(self.labels) - len(found))]

    def _series(self, values: tuple[object, ...]) -> str:
        if len(values) != len(self.labels):
            raise ValueError(f"{self.name} has the labels {self.labels}, not {len(values)} of them")
        return ":".join((self.key, *map(str, values)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Counter(Metric):
    type: ClassVar[str] = "counter"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorkerCounter(Counter):
    """Counted in the workers, over the life of each."""

    def series(self, *values: object) -> CounterSeries:
        """The name of one of its series in `Stats`: a value for each label."""
        return CounterSeries(self._series(values))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gauge(Metric):
    type: ClassVar[str] = "gauge"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorkerGauge(Gauge):
    """Measured in the workers."""

    def series(self, *values: object) -> GaugeSeries:
        """The name of one of its series in `Stats`: a value for each label."""
        return GaugeSeries(self._series(values))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Histogram(Metric):
    """An interval between two named endpoints, or a ratio of such."""

    type: ClassVar[str] = "histogram"

    start: str
    end: str
    buckets: tuple[float, ...]  # upper bounds, +Inf excluded
    steps: str = ""  # kind of engine step whose seconds are its samples, by their rows (`ROWS`)

    @property
    def document(self) -> str:
        """The help text, with both endpoints."""
        return f"{self.help} ({self.start} → {self.end}).{f' {self.note}' if self.note else ''}"


def interval(
    key: str,
    help: str,
    start: str,
    end: str,
    buckets: tuple[float, ...],
    *,
    note: str = "",
    label: str = "",
    values: tuple[str, ...] = (),
    steps: str = "",
) -> Histogram:
    return Histogram(
        name=f"{PREFIX}{key}_seconds",
        unit="seconds",
        help=help,
        start=start,
        end=end,
        note=note,
        labels=_split(label),
        values=values,
        buckets=buckets,
        steps=steps,
    )


def counter(key: str, unit: str, help: str, *, note: str = "", label: str = "") -> Counter:
    return Counter(name=f"{PREFIX}{key}_total", unit=unit, help=help, note=note, labels=_split(label))


def worker_counter(key: str, unit: str, help: str, *, note: str = "", label: str = "") -> WorkerCounter:
    return WorkerCounter(name=f"{PREFIX}{key}_total", unit=unit, help=help, note=note, labels=_split(label))


def gauge(key: str, unit: str, help: str, *, label: str = "", values: tuple[str, ...] = ()) -> Gauge:
    return Gauge(name=f"{PREFIX}{key}", unit=unit, help=help, labels=_split(label), values=values)


def worker_gauge(key: str, unit: str, help: str, *, label: str = "") -> WorkerGauge:
    return WorkerGauge(name=f"{PREFIX}{key}", unit=unit, help=help, labels=_split(label))


def _split(label: str) -> tuple[str, ...]:
    return tuple(label.split(":")) if label else ()


def span(low: float, high: float) -> tuple[float, ...]:
    """Bounds at 1, 2 and 5 times the powers of ten, both ends included."""
    steps = [float(f"{digit}e{power}") for power in range(-6, 5) for digit in (1, 2, 5)]
    return tuple(step for step in steps if low <= step <= high)


def rows_label(rows: int) -> str:
    return ROWS[min((max(1, rows) - 1).bit_length(), len(ROWS) - 1)]


def metrics_of(module: Mapping[str, object]) -> tuple[Metric, ...]:
    """All that a module defines, by its `globals()`, in that order."""
    return tuple(value for value in module.values() if isinstance(value, Metric))
