"""The numbers of one model: counters, gauges and distributions, by metric and label value.

Kept as plain values and turned into Prometheus families when somebody asks, so that all gaps of a request are added in
one go.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence

from metrics.definitions import common
from metrics.metric import MAX_LABEL_VALUES, OTHER, Counter, Gauge, Histogram, Metric, WorkerCounter, WorkerGauge
from metrics.percentiles import Percentiles
from metrics.slo import Goodput, Objectives

Key = tuple[Metric, str]  # (metric, values of its labels, joined by ":", or "")


class Distribution:
    """One histogram: cumulative since start, as Prometheus wants it, and its percentiles."""

    def __init__(self, bounds: tuple[float, ...], clock: Callable[[], float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0
        self.percentiles = Percentiles(clock)

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value
        self.percentiles.add(value)

    def extend(self, values: Sequence[float]) -> None:
        ordered = sorted(values)
        self._total += sum(values)
        self.percentiles.extend(values)
        below = 0
        for index, bound in enumerate(self._bounds):
            upto = bisect_right(ordered, bound)
            self._counts[index] += upto - below
            below = upto
        self._counts[-1] += len(ordered) - below

    @property
    def total(self) -> float:
        return self._total

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper bound, values at or below it), +Inf last."""
        seen = 0
        found: list[tuple[str, float]] = []
        for bound, count in zip([*map(repr, self._bounds), "+Inf"], self._counts, strict=True):
            seen += count
            found.append((bound, float(seen)))
        return found


class ModelSeries:
    """All series of one model. `sources` hold gauges: a worker's life each, and the gateway's own under ""."""

    def __init__(self, model: str, pipeline: str, metrics: Sequence[Metric], clock: Callable[[], float]) -> None:
        """`metrics`: those that models of its kind have beside the common ones."""
        self.model = model
        self.pipeline = pipeline
        known = (*common.METRICS, *metrics)
        self.worker_counters = {metric.key: metric for metric in known if isinstance(metric, WorkerCounter)}
        self.worker_gauges = {metric.key: metric for metric in known if isinstance(metric, WorkerGauge)}
        self.histograms = {
            metric.key.removesuffix("_seconds"): metric for metric in known if isinstance(metric, Histogram)
        }
        self.by_step = [metric for metric in self.histograms.values() if metric.steps]
        self.objectives = Objectives()
        self.goodput = Goodput(clock)
        self.workers: dict[str, str] = {}  # replica -> state
        self.counters: dict[Key, float] = {}
        self.distributions: dict[Key, Distribution] = {}
        self._clock = clock
        self._sources: dict[str, dict[Key, float]] = {}
        self._lives: dict[str, dict[Key, float]] = {}  # worker id -> its cumulative counters as last reported
        self._labels: dict[Metric, set[str]] = {}
        self._metrics = dict.fromkeys(known)  # in the order of the definitions
        for metric in known:
            if not metric.labels:
                self._create((metric, ""))
            for value in metric.values:
                self._key(metric, value)

    def _create(self, key: Key) -> None:
        match key[0]:
            case Counter():
                self.counters[key] = 0.0
            case Histogram(buckets=buckets):
                self.distributions[key] = Distribution(buckets, self._clock)

    def _key(self, metric: Metric, value: str) -> Key:
        """The series of a label value, made on its first use; those of known values are there from the start, at zero,
        so that rates have a first point."""
        key = (metric, value)
        if metric.labels:
            known = self._labels.setdefault(metric, set())
            if value not in known:
                key = (metric, value if len(known) < MAX_LABEL_VALUES else OTHER)
                if key[1] not in known:
                    known.add(key[1])
                    self._create(key)
        return key

    def count(self, metric: Counter, amount: float = 1, label: str = "") -> None:
        """Nothing happens where the metric is not one of this pipeline's, here and in `observe`."""
        if metric in self._metrics:
            self.counters[self._key(metric, label)] += amount

    def observe(self, metric: Histogram, values: float | tuple[float, ...], label: str = "") -> None:
        if metric not in self._metrics:
            return
        distribution = self.distributions[self._key(metric, label)]
        if isinstance(values, tuple):
            distribution.extend(values)
        else:
            distribution.add(values)

    def set(self, metric: Gauge, value: float, label: str = "", source: str = "") -> None:
        self._sources.setdefault(source, {})[self._key(metric, label)] = value

    def advance(self, worker_id: str, metric: WorkerCounter, value: float, label: str = "") -> None:
        """Count what a worker's own counter has gained: it starts at zero with each life, ours never falls."""
        key = (metric, label)  # not as it is bounded: the others' sum is none of its terms
        life = self._lives.setdefault(worker_id, {})
        self.count(metric, max(0.0, value - life.get(key, 0.0)), label)
        life[key] = value

    def forget(self, worker_id: str) -> None:
        """A worker is gone: its gauges go with it, what it counted stays."""
        self._sources.pop(worker_id, None)
        self._lives.pop(worker_id, None)

    def forget_workers(self) -> None:
        for worker_id in {*self._sources, *self._lives} - {""}:
            self.forget(worker_id)

    def gauges(self) -> Iterator[tuple[Key, float]]:
        """Each gauge summed over its sources; 0 where no source has it, the states of replicas counted."""
        for metric in self._metrics:
            if isinstance(metric, Gauge):
                for value in metric.values or (tuple(self._labels.get(metric, ())) if metric.labels else ("",)):
                    key = (metric, value)
                    yield key, sum(source.get(key, 0.0) for source in self._sources.values())
