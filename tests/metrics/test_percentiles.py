import numpy as np
import pytest

from metrics.percentiles import (
    LARGEST,
    QUANTILES,
    RELATIVE_ERROR,
    SMALLEST,
    WINDOWS,
    Percentiles,
    Ring,
    Sketch,
    bucket_counts,
)


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    "values",
    [
        np.random.default_rng(1).lognormal(-4, 1.5, 20_000),
        np.random.default_rng(2).uniform(0.001, 0.002, 501),
        np.random.default_rng(3).pareto(1.2, 3_000) + 1e-4,
        np.array([0.25]),
        np.array([0.1, 100.0]),
    ],
    ids=["lognormal", "narrow", "heavy tail", "one", "two"],
)
def test_quantiles_are_within_the_stated_error_of_numpy_s(values: np.ndarray) -> None:
    percentiles = Percentiles(Clock())
    for part in np.array_split(values, 7):  # arrives in parts, alone and together
        if len(part):
            percentiles.add(part.tolist())
    summary = percentiles.summaries()["start"]
    expected = np.quantile(values, QUANTILES, method="lower")
    assert summary.quantiles == pytest.approx(expected, rel=RELATIVE_ERROR)
    assert summary.count == len(values)
    assert summary.mean == pytest.approx(values.mean())


def test_one_value_and_many_fall_into_the_same_buckets() -> None:
    values = [0.0, 1e-9, SMALLEST, 0.01, 1.0, 37.0, LARGEST, 1e12]
    together = bucket_counts(values)
    for value in values:
        ((index, count),) = bucket_counts([value]).items()
        assert count == 1
        assert index in together
    assert sum(together.values()) == len(values)


def test_memory_is_bounded_whatever_the_values() -> None:
    sketch = Sketch()
    values = np.geomspace(1e-12, 1e12, 50_000).tolist()
    sketch.add(bucket_counts(values), len(values), sum(values))
    assert len(sketch.buckets) <= 1_383


def test_windows_forget_and_start_does_not() -> None:
    clock = Clock()
    percentiles = Percentiles(clock)
    percentiles.add([1.0] * 3)
    for later, minute, quarter in [(59, 3, 3), (71, 0, 3), (899, 0, 3), (911, 0, 0)]:
        clock.now = 1000.0 + later
        found = {name: summary.count for name, summary in percentiles.summaries().items()}
        assert found == {"1m": minute, "15m": quarter, "start": 3}
    assert percentiles.window(60).quantiles == ()


def test_windows_merge_their_slots() -> None:
    clock = Clock()
    percentiles = Percentiles(clock)
    for second in range(50):
        clock.now = 1000.0 + second
        percentiles.add([float(second + 1)])
    assert percentiles.window(60).quantiles[0] == pytest.approx(25, rel=RELATIVE_ERROR)


def test_a_ring_keeps_no_more_than_the_longest_window() -> None:
    clock = Clock()
    ring = Ring(list[float], clock)
    for step in range(500):
        clock.now += 10
        ring.current().append(step)
    assert len(list(ring.last(1e9))) <= max(WINDOWS.values()) / 10 + 1
