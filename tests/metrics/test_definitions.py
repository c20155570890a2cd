from pathlib import Path

from metrics.definitions import METRICS
from metrics.metric import Kind
from metrics.page import page

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_page_is_generated_from_the_definitions() -> None:
    assert DOCS.read_text() == page(METRICS), "stale: python -m metrics.definitions > docs/metrics.md"


def test_names_are_unique_prefixed_and_in_base_units() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert metric.name.startswith("gateway_")
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
        for unit in ("seconds", "bytes"):
            assert metric.name.removesuffix("_total").endswith(f"_{unit}") == (metric.unit == unit)


def test_intervals_name_both_endpoints_and_buckets_ascend() -> None:
    for metric in METRICS:
        assert bool(metric.start) == bool(metric.end) == (metric.kind is Kind.HISTOGRAM)
        assert list(metric.buckets) == sorted(set(metric.buckets))
        assert bool(metric.buckets) == (metric.kind is Kind.HISTOGRAM)
