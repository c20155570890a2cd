import numpy as np
import pytest

from metrics.percentiles import (
    LARGEST,
    QUANTILES,
    RELATIVE_ERROR,
    SLOT,
    SMALLEST,
    WINDOWS,
    Percentiles,
    Ring,
    Sketch,
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
        np.array([0.1, 1.0, 100.0]),
    ],
    ids=["lognormal", "narrow", "heavy tail", "one", "three"],
)
def test_quantiles_are_within_the_stated_error_of_numpy_s(values: np.ndarray) -> None:
    percentiles = Percentiles(Clock())
    for part in np.array_split(values, 7):  # they arrive in groups, and alone
        percentiles.extend(part[1:].tolist())
        for value in part[:1].tolist():
            percentiles.add(value)
    summary = percentiles.summaries()["start"]
    expected = np.quantile(values, QUANTILES, method="inverted_cdf")
    assert summary.quantiles == pytest.approx(expected, rel=RELATIVE_ERROR)
    assert summary.count == len(values)
    assert summary.mean == pytest.approx(values.mean())


def test_values_alone_and_in_groups_are_counted_alike() -> None:
    values = [0.0, 1e-9, SMALLEST, 0.01, 1.0, 37.0, LARGEST, 1e12, 0.01]
    alone, together = Sketch(), Sketch()
    for value in values:
        alone.add(value)
    together.extend(values)
    assert alone.buckets == together.buckets
    assert (alone.count, alone.total) == (together.count, together.total) == (len(values), sum(values))


def test_memory_is_bounded_whatever_the_values() -> None:
    sketch = Sketch()
    sketch.extend(np.geomspace(1e-12, 1e12, 50_000).tolist())
    assert len(sketch.buckets) <= 1_383


def test_windows_forget_and_start_does_not() -> None:
    clock = Clock()
    percentiles = Percentiles(clock)
    percentiles.extend([1.0] * 3)
    for later, minute, quarter in [(59, 3, 3), (71, 0, 3), (899, 0, 3), (911, 0, 0)]:
        clock.now = 1000.0 + later
        found = {name: summary.count for name, summary in percentiles.summaries().items()}
        assert found == {"1m": minute, "15m": quarter, "start": 3}
    assert percentiles.summaries()["1m"].quantiles == ()


def test_windows_merge_their_slots() -> None:
    clock = Clock()
    percentiles = Percentiles(clock)
    for second in range(50):
        clock.now = 1000.0 + second
        percentiles.add(float(second + 1))
    assert percentiles.summaries()["1m"].quantiles[0] == pytest.approx(25, rel=RELATIVE_ERROR)


def test_what_leaves_the_windows_is_kept_since_start() -> None:
    clock = Clock()
    percentiles = Percentiles(clock)
    for _ in range(500):
        clock.now += SLOT
        percentiles.add(2.0)
    found = percentiles.summaries()
    assert (found["15m"].count, found["start"].count) == (91, 500)
    assert found["start"].mean == 2.0


def test_a_ring_keeps_no_more_than_the_longest_window() -> None:
    clock = Clock()
    expired: list[list[float]] = []
    ring: Ring[list[float]] = Ring(list, expired.append, clock)
    for step in range(500):
        clock.now += SLOT
        ring.current().append(step)
    assert len(list(ring)) == max(WINDOWS.values()) / SLOT + 1
    assert len(expired) == 500 - len(list(ring))
