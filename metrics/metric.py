"""The shape of a metric's definition."""

from dataclasses import dataclass
from enum import StrEnum

PREFIX = "gateway_"
MAX_LABEL_VALUES = 64  # of a metric's own labels, for one model; what comes after is counted as OTHER
OTHER = "other"


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Metric:
    """One metric. Every series has the labels `model` and `pipeline`, then `labels`, whose values are joined by ":".

    Compared by identity: each is defined once, and is a key of hot dictionaries.

    `start` and `end` are the endpoints of an interval; `note` says what else a reader must know.
    """

    name: str
    kind: Kind
    unit: str  # base units: seconds, bytes; else what is counted
    help: str
    start: str = ""
    end: str = ""
    note: str = ""
    labels: tuple[str, ...] = ()
    values: tuple[str, ...] = ()  # the labels' values where all are known: their series exist from the start
    buckets: tuple[float, ...] = ()  # upper bounds, +Inf excluded
    pipelines: tuple[str, ...] = ()  # empty: every pipeline

    @property
    def key(self) -> str:
        """The name under which a worker's `Stats` and `/v1/metrics` carry it."""
        return self.name.removeprefix(PREFIX).removesuffix("_total")

    def applies(self, pipeline: str) -> bool:
        return not self.pipelines or pipeline in self.pipelines

    def label_values(self, value: str) -> list[str]:
        """One for each of `labels`."""
        if not self.labels:
            return []
        found = value.split(":", len(self.labels) - 1)
        return [*found, *[OTHER] * (len(self.labels) - len(found))]

    @property
    def document(self) -> str:
        """The help text: an interval names both of its endpoints."""
        interval = f" ({self.start} → {self.end})" if self.start else ""
        return f"{self.help}{interval}.{f' {self.note}' if self.note else ''}"


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
    pipelines: tuple[str, ...] = (),
) -> Metric:
    return Metric(
        name=f"{PREFIX}{key}_seconds",
        kind=Kind.HISTOGRAM,
        unit="seconds",
        help=help,
        start=start,
        end=end,
        note=note,
        labels=_split(label),
        values=values,
        buckets=buckets,
        pipelines=pipelines,
    )


def counter(
    key: str, unit: str, help: str, *, note: str = "", label: str = "", pipelines: tuple[str, ...] = ()
) -> Metric:
    name = f"{PREFIX}{key}_total"
    return Metric(
        name=name, kind=Kind.COUNTER, unit=unit, help=help, note=note, labels=_split(label), pipelines=pipelines
    )


def gauge(
    key: str,
    unit: str,
    help: str,
    *,
    label: str = "",
    values: tuple[str, ...] = (),
    pipelines: tuple[str, ...] = (),
) -> Metric:
    name = f"{PREFIX}{key}"
    return Metric(
        name=name, kind=Kind.GAUGE, unit=unit, help=help, labels=_split(label), values=values, pipelines=pipelines
    )


def _split(label: str) -> tuple[str, ...]:
    return tuple(label.split(":")) if label else ()


def span(low: float, high: float) -> tuple[float, ...]:
    """Bounds at 1, 2 and 5 times the powers of ten, both ends included."""
    steps = [float(f"{digit}e{power}") for power in range(-6, 5) for digit in (1, 2, 5)]
    return tuple(step for step in steps if low <= step <= high)
