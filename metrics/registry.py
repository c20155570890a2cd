"""What the gateway knows of its models, and how it is told. One object, used on the event loop alone.

Everything taken is a primitive or a `Timeline`. `pipeline` is the kind of a model (`text`, …), `model` its configured
name, never what a client sent: both become labels.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import monotonic

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder

from metrics.definitions import common as d
from metrics.metric import Counter, CounterSeries, Gauge, GaugeSeries, Histogram, Metric, rows_label
from metrics.series import ModelSeries
from metrics.slo import objectives, verdict
from metrics.snapshot import Snapshot, take
from metrics.timeline import Intervals, Timeline, intervals

log = logging.getLogger(__name__)

LIVE = frozenset({"ready", "draining"})  # states in which a replica has a worker that reports


class Registry:
    """Collects; renders for Prometheus; snapshots for `/v1/metrics`."""

    def __init__(
        self, kinds: Mapping[str, Sequence[Metric]] | None = None, clock: Callable[[], float] = monotonic
    ) -> None:
        """`kinds`: what models of each kind (`pipeline`) have beside the common metrics."""
        self._kinds = kinds or {}
        self._clock = clock
        self._unknown: set[tuple[str, str]] = set()  # (model, series) that a worker told and no definition knows
        self._models: dict[tuple[str, str], ModelSeries] = {}
        self._admissions: dict[tuple[str, str], Callable[[], tuple[int, int, int]]] = {}
        self._slos: dict[str, Mapping[str, float | None]] = {}
        self._prometheus = CollectorRegistry(auto_describe=False)
        self._prometheus.register(self)

    # --- requests -----------------------------------------------------------------------------------------------------

    def request(self, model: str, pipeline: str, timeline: Timeline) -> Intervals:
        """A request that reached the model's route is closed: called once for each, refused ones too."""
        series = self._of(model, pipeline)
        derived = intervals(timeline)
        series.count(d.REQUESTS, label=timeline.outcome or "unknown")
        if timeline.slot is None:
            return derived
        series.count(d.ADMITTED)
        for name, values in derived.samples():
            if (histogram := series.histograms.get(name)) is not None:
                series.observe(histogram, values)
        for metric, value in timeline.samples:
            series.observe(metric, value)
        for counter, amount in timeline.totals():
            series.count(counter, amount)
        met = verdict(series.objectives, timeline, derived)
        if met is not None:
            self._judge(series, met)
        return derived

    def sample(self, model: str, pipeline: str, metric: Histogram, value: float) -> None:
        """One more sample, before the request is closed."""
        self._of(model, pipeline).observe(metric, value)

    def rejected(self, model: str, pipeline: str, reason: str) -> None:
        """A request was refused before it had a slot, through no fault of its caller: a miss of its SLOs."""
        series = self._of(model, pipeline)
        series.count(d.REJECTIONS, label=reason)
        self._judge(series, met=False)

    def set_slo(self, model: str, slo: Mapping[str, float | None]) -> None:
        """Bounds by name: ttft_ms, itl_ms, tpot_ms, e2e_ms. Raises TypeError for another name."""
        bounds = objectives(slo)
        self._slos[model] = slo
        for series in self._models.values():
            if series.model == model:
                series.objectives = bounds

    # --- engines and workers ------------------------------------------------------------------------------------------

    def step(self, model: str, pipeline: str, kind: str, rows: int, tokens: int, seconds: float) -> None:
        """One step of an engine."""
        series = self._of(model, pipeline)
        series.observe(d.STEP, seconds, kind)
        series.count(d.STEP_ROWS, rows, kind)
        series.count(d.STEP_TOKENS, tokens, kind)
        for metric in series.by_step:
            if metric.steps == kind:
                series.observe(metric, seconds, rows_label(rows))

    def stats(
        self,
        model: str,
        pipeline: str,
        running: int,
        waiting: int,
        counters: Mapping[CounterSeries, float],
        gauges: Mapping[GaugeSeries, float],
        worker_id: str,
    ) -> None:
        """A worker's report. `worker_id` is one life of one worker: a restarted one has another.

        `counters` are cumulative over that life. Names are those of `WorkerCounter.series` and `WorkerGauge.series`;
        one that the kind's metrics do not have is an error of the pipeline, which is logged once.
        """
        series = self._of(model, pipeline)
        series.set(d.RUNNING, running, source=worker_id)
        series.set(d.WAITING, waiting, source=worker_id)
        for name, value in counters.items():
            key, _, label = name.partition(":")
            if (counter := series.worker_counters.get(key)) is not None:
                series.advance(worker_id, counter, value, label)
            else:
                self._complain(model, pipeline, name)
        for level, value in gauges.items():
            key, _, label = level.partition(":")
            if (gauge := series.worker_gauges.get(key)) is not None:
                series.set(gauge, value, label, source=worker_id)
            else:
                self._complain(model, pipeline, level)

    def memory(self, model: str, pipeline: str, resident_bytes: int, worker_id: str) -> None:
        """Resident memory of one worker process."""
        self._of(model, pipeline).set(d.RESIDENT, resident_bytes, source=worker_id)

    def worker_gone(self, model: str, pipeline: str, worker_id: str) -> None:
        """A life of a worker ended: its gauges are dropped, its counters kept. Idempotent."""
        self._of(model, pipeline).forget(worker_id)

    def worker_state(self, model: str, pipeline: str, replica: str, state: str) -> None:
        """A replica changed its state (one of `definitions.STATES`)."""
        series = self._of(model, pipeline)
        series.workers[replica] = state
        states = list(series.workers.values())
        for value in d.STATES:
            series.set(d.WORKERS, states.count(value), value)
        if not LIVE.intersection(states):
            series.forget_workers()

    def worker_restart(self, model: str, pipeline: str) -> None:
        """A worker is started again after it was lost."""
        self._of(model, pipeline).count(d.RESTARTS)

    def load_seconds(self, model: str, pipeline: str, seconds: float) -> None:
        """A model's load took `seconds`, from process start to ready."""
        self._of(model, pipeline).set(d.LOAD, seconds)

    def admission(self, model: str, pipeline: str, state: Callable[[], tuple[int, int, int]]) -> None:
        """Where to look when somebody asks for a model's admission: (slots, slots used, requests that wait)."""
        self._admissions[model, pipeline] = state
        self._of(model, pipeline)

    # --- what comes out -----------------------------------------------------------------------------------------------

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """(body, content type): OpenMetrics where the Accept header asks for it, else Prometheus text."""
        encode, content_type = choose_encoder(accept)
        return encode(self._prometheus), content_type

    def snapshot(self) -> Snapshot:
        self._look()
        return take(self._models.values())

    def collect(self) -> Iterable[Family]:
        """What prometheus-client asks a collector for."""
        self._look()
        for metric in dict.fromkeys((*d.METRICS, *(metric for metrics in self._kinds.values() for metric in metrics))):
            family = _family(metric)
            for series in self._models.values():
                _add(family, metric, series)
            yield family

    def _of(self, model: str, pipeline: str) -> ModelSeries:
        found = self._models.get((model, pipeline))
        if found is None:
            metrics = self._kinds.get(pipeline, ())
            found = self._models[model, pipeline] = ModelSeries(model, pipeline, metrics, self._clock)
            found.objectives = objectives(self._slos.get(model, {}))
        return found

    def _complain(self, model: str, pipeline: str, name: str) -> None:
        if (model, name) not in self._unknown:
            self._unknown.add((model, name))
            log.error(
                "a worker of %s tells %r, which is no worker metric of %s models: it is lost", model, name, pipeline
            )

    def _look(self) -> None:
        for key, state in self._admissions.items():
            series = self._models[key]
            for gauge, value in zip((d.SLOTS, d.SLOTS_USED, d.QUEUED), state(), strict=True):
                series.set(gauge, value)

    def _judge(self, series: ModelSeries, met: bool) -> None:
        series.goodput.add(met)
        series.count(d.SLO_REQUESTS)
        series.count(d.SLO_MET, met)


def _family(metric: Metric) -> CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily:
    labels = ["model", "pipeline", *metric.labels]
    match metric:
        case Counter():
            return CounterMetricFamily(metric.name, metric.document, labels=labels)
        case Gauge():
            return GaugeMetricFamily(metric.name, metric.document, labels=labels)
        case _:
            return HistogramMetricFamily(metric.name, metric.document, labels=labels)


def _add(family: Family, metric: Metric, series: ModelSeries) -> None:
    def labels(value: str) -> list[str]:
        return [series.model, series.pipeline, *metric.label_values(value)]

    match family:
        case HistogramMetricFamily():
            for (found, value), distribution in series.distributions.items():
                if found is metric:
                    family.add_metric(labels(value), distribution.cumulative(), distribution.total)
        case CounterMetricFamily():
            for (found, value), count in series.counters.items():
                if found is metric:
                    family.add_metric(labels(value), count)
        case GaugeMetricFamily():
            for (found, value), level in series.gauges():
                if found is metric:
                    family.add_metric(labels(value), level)
