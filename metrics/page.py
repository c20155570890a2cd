"""The docs page, from the definitions."""

from collections.abc import Iterable, Mapping

from metrics.definitions import common
from metrics.metric import MAX_LABEL_VALUES, OTHER, Histogram, Metric
from metrics.percentiles import QUANTILES, RELATIVE_ERROR, SLOT, WINDOWS

_INTRODUCTION = f"""\
# Metrics

`GET /metrics` answers in Prometheus text, or OpenMetrics where `Accept` asks for it. Every series has the labels
`model` and `pipeline`; others are named in the table, and take at most {MAX_LABEL_VALUES} values (what comes after is
`{OTHER}`).

`GET /v1/metrics` answers in JSON: for each model its histograms as {", ".join(f"p{share * 100:g}" for share in QUANTILES)},
mean and count over the windows {", ".join(f"`{name}`" for name in WINDOWS)} and `start` (since the gateway started), goodput, counters,
gauges and the state of each worker. Names there lack the prefix `gateway_` and the suffix `_total`; a labelled series is
`name:value`, with two labels `name:value:value`. Quantiles are within {RELATIVE_ERROR:.0%} of the true order statistic; a
window reaches back its length and up to {SLOT:g} s more.

Stamps are taken on monotonic clocks; what a worker measures reaches the gateway as a duration. Counters never fall,
whatever becomes of a worker; its gauges go with it. Samples of a request are added when it is closed.

**Goodput** is the share of requests that finished and met every objective of their model (`ttft_ms`, `itl_ms`,
`tpot_ms`, `e2e_ms` of its `slo` table; without one, the share that finished). `itl_ms` bounds every gap, `tpot_ms` the
mean of each choice. Failed and rejected requests are misses; invalid ones and those whose client left do not count.
"""  # noqa: E501 (what is filled in is shorter)


def page(kinds: Mapping[str, Iterable[Metric]]) -> str:
    """Markdown: one table for all pipelines, then one for each that has its own."""
    tables = {"Every pipeline": common.METRICS} | {name.capitalize(): metrics for name, metrics in kinds.items()}
    return "\n".join([_INTRODUCTION, *(f"## {title}\n\n{_table(metrics)}" for title, metrics in tables.items())])


def _table(metrics: Iterable[Metric]) -> str:
    head = "| metric | type | unit | what it measures | label | buckets |\n|---|---|---|---|---|---|\n"
    return head + "".join(f"| {' | '.join(_row(metric))} |\n" for metric in metrics)


def _row(metric: Metric) -> tuple[str, ...]:
    return f"`{metric.name}`", metric.type, metric.unit, metric.document, _label(metric), _buckets(metric)


def _label(metric: Metric) -> str:
    if not metric.labels:
        return ""
    names = ", ".join(f"`{label}`" for label in metric.labels)
    return f"{names} ({', '.join(metric.values)})" if metric.values else names


def _buckets(metric: Metric) -> str:
    """Their bounds run through 1, 2, 5, 10, …"""
    return f"{metric.buckets[0]:g} … {metric.buckets[-1]:g}" if isinstance(metric, Histogram) else ""
