import pytest

from metrics.slo import Goodput, objectives, verdict
from metrics.timeline import Timeline, intervals
from tests.metrics.factories import timeline
from tests.metrics.test_percentiles import Clock


def judge(request: Timeline, **slo: float | None) -> bool | None:
    return verdict(objectives(slo), request, intervals(request))


@pytest.mark.parametrize(
    ("name", "bound"),
    [("ttft_ms", 500), ("itl_ms", 200), ("tpot_ms", 150), ("e2e_ms", 950)],
)
def test_each_objective_is_a_bound(name: str, bound: float) -> None:
    assert judge(timeline(), **{name: bound + 1}) is True
    assert judge(timeline(), **{name: bound - 1}) is False


def test_all_must_be_met() -> None:
    assert judge(timeline(), ttft_ms=1000, e2e_ms=1) is False
    assert judge(timeline(), ttft_ms=None) is True


def test_the_worst_choice_decides() -> None:
    slow = timeline(tokens=[(10.1, 0, 1), (10.2, 0, 1), (10.1, 1, 1), (10.6, 1, 1)])
    assert judge(slow, tpot_ms=400) is False


def test_failures_miss_and_the_caller_s_doing_does_not_count() -> None:
    assert judge(timeline("worker_lost"), ttft_ms=1e6) is False
    assert judge(timeline("deadline_exceeded")) is False
    assert judge(timeline("cancelled")) is None
    assert judge(timeline("invalid_request")) is None


def test_an_unknown_objective_is_refused() -> None:
    with pytest.raises(TypeError):
        objectives({"rtf": 1.0})


def test_goodput_by_window() -> None:
    clock = Clock()
    goodput = Goodput(clock)
    assert goodput.tallies()["1m"].share is None
    goodput.add(False)
    clock.now += 100
    goodput.add(True)
    goodput.add(True)
    shares = {name: tally.share for name, tally in goodput.tallies().items()}
    assert shares == {"1m": 1.0, "15m": pytest.approx(2 / 3), "start": pytest.approx(2 / 3)}
