"""The JSON of `/v1/metrics`: for each model, percentiles by window, goodput, counters, gauges and worker states."""

from collections.abc import Iterable

from msgspec import Struct

from metrics.percentiles import WINDOWS, Summary
from metrics.series import Key, ModelSeries
from metrics.slo import Tally


class Quantiles(Struct, frozen=True):
    """In the metric's unit; null where nothing was observed."""

    count: int
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None


class Goodput(Struct, frozen=True):
    """`share` = `met` / `requests`; null without requests."""

    requests: int
    met: int
    share: float | None


class ModelSnapshot(Struct, frozen=True):
    """One model. Keys are metric names without prefix and `_total`; a labelled series is `key:label value`."""

    model: str
    pipeline: str
    workers: dict[str, str]  # replica -> state
    slo: dict[str, float]  # objective -> milliseconds
    goodput: dict[str, Goodput]  # by window
    windows: dict[str, dict[str, Quantiles]]  # window -> metric -> quantiles
    counters: dict[str, float]
    gauges: dict[str, float]


class Snapshot(Struct, frozen=True):
    models: list[ModelSnapshot]


def take(models: Iterable[ModelSeries]) -> Snapshot:
    return Snapshot([_model(series) for series in models])


def _model(series: ModelSeries) -> ModelSnapshot:
    windows: dict[str, dict[str, Quantiles]] = {name: {} for name in (*WINDOWS, "start")}
    for key, distribution in series.distributions.items():
        for name, summary in distribution.percentiles.summaries().items():
            windows[name][_name(key)] = _quantiles(summary)
    return ModelSnapshot(
        model=series.model,
        pipeline=series.pipeline,
        workers=dict(series.workers),
        slo=series.objectives.asked(),
        goodput={name: _goodput(tally) for name, tally in series.goodput.tallies().items()},
        windows=windows,
        counters={_name(key): value for key, value in series.counters.items()},
        gauges={_name(key): value for key, value in series.gauges()},
    )


def _name(key: Key) -> str:
    metric, label = key
    return f"{metric.key}:{label}" if label else metric.key


def _quantiles(summary: Summary) -> Quantiles:
    return Quantiles(summary.count, summary.mean, *summary.quantiles) if summary.count else Quantiles(0)


def _goodput(tally: Tally) -> Goodput:
    return Goodput(tally.requests, tally.met, tally.share)
