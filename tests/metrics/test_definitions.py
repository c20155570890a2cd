from pathlib import Path

import pytest

from metrics.definitions import common
from metrics.definitions.text import ACCEPTED_AT
from metrics.metric import Counter, Histogram
from metrics.page import page
from pipelines.kinds import metrics_by_kind

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"
METRICS = [*common.METRICS, *(metric for metrics in metrics_by_kind().values() for metric in metrics)]


def test_the_page_is_generated_from_the_definitions() -> None:
    assert DOCS.read_text() == page(metrics_by_kind()), "stale: python -m scripts.metrics_page > docs/metrics.md"


def test_names_are_unique_prefixed_and_in_base_units() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert metric.name.startswith("gateway_")
        assert metric.name.endswith("_total") == isinstance(metric, Counter)
        for unit in ("seconds", "bytes"):
            assert metric.name.removesuffix("_total").endswith(f"_{unit}") == (metric.unit == unit)


def test_intervals_name_both_endpoints_and_buckets_ascend() -> None:
    for metric in METRICS:
        if isinstance(metric, Histogram):
            assert metric.start
            assert metric.end
            assert metric.buckets
            assert list(metric.buckets) == sorted(set(metric.buckets))


def test_a_series_has_a_value_for_each_label() -> None:
    assert ACCEPTED_AT.series("draft", 3) == "accepted_at:draft:3"
    with pytest.raises(ValueError, match="labels"):
        ACCEPTED_AT.series("draft")
