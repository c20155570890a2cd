import pytest

from metrics.definitions import common
from metrics.metric import Histogram
from metrics.timeline import Intervals, Timeline, intervals, phases
from pipelines.kinds import metrics_by_kind
from tests.metrics.factories import rejected, timeline


def test_a_finished_request_gives_every_interval() -> None:
    derived = intervals(timeline())
    assert derived.admission_wait == pytest.approx(0.04)
    assert derived.queue == pytest.approx(0.06 + 0.03 + 0.02)  # arrival -> opened, prepare, engine queue
    assert derived.prepare == 0.03
    assert derived.ttft == pytest.approx(0.5)
    assert derived.itl == pytest.approx((0.1, 0.2))
    assert derived.tpot == pytest.approx((0.15,))
    assert (derived.prefill, derived.decode) == (0.38, 0.3)
    assert derived.e2e == pytest.approx(0.95)
    assert derived.overhead == pytest.approx(0.95 - 0.04 - 0.8)


def test_k_tokens_of_one_step_are_k_gaps() -> None:
    derived = intervals(timeline(tokens=[(10.5, 0, 1), (10.8, 0, 3), (10.9, 0, 1)]))
    assert derived.itl == pytest.approx((0.1, 0.1, 0.1, 0.1))
    assert derived.tpot == pytest.approx((0.1,))


def test_the_first_step_s_tokens_have_no_gap_but_count_for_tpot() -> None:
    derived = intervals(timeline(tokens=[(10.5, 0, 2), (10.8, 0, 2)]))
    assert derived.itl == pytest.approx((0.15, 0.15))
    assert derived.tpot == pytest.approx((0.1,))


def test_choices_are_kept_apart() -> None:
    derived = intervals(timeline(tokens=[(10.4, 1, 1), (10.5, 0, 1), (10.5, 1, 1), (10.7, 0, 1), (10.8, 2, 1)]))
    assert derived.ttft == pytest.approx(0.4)
    assert sorted(derived.itl) == pytest.approx([0.1, 0.2])
    assert sorted(derived.tpot) == pytest.approx([0.1, 0.2])  # the third choice has one token: no TPOT


def test_text_without_a_token_is_no_token() -> None:
    derived = intervals(timeline(tokens=[(10.2, 0, 0), (10.5, 0, 1), (10.6, 0, 0)]))
    assert derived.ttft == pytest.approx(0.5)
    assert (derived.itl, derived.tpot, derived.decode) == ((), (), None)


def test_a_request_without_a_token_has_no_token_times() -> None:
    derived = intervals(timeline(outcome="length", tokens=[]))
    assert (derived.ttft, derived.itl, derived.tpot, derived.prefill, derived.decode) == (None, (), (), None, None)
    assert derived.e2e is not None


def test_a_failed_request_keeps_what_was_measured_and_invents_nothing() -> None:
    derived = intervals(timeline("worker_lost"))
    assert (derived.ttft, len(derived.itl)) == (pytest.approx(0.5), 2)
    assert derived.e2e == pytest.approx(0.95)  # a tail made of successes only would hide the failures
    assert (derived.queue, derived.prepare, derived.tpot) == (None, None, ())
    assert (derived.prefill, derived.decode, derived.overhead) == (None, None, None)


@pytest.mark.parametrize("outcome", ["cancelled", "invalid_request", "context_length_exceeded"])
def test_what_the_caller_ended_has_no_e2e(outcome: str) -> None:
    assert intervals(timeline(outcome)).e2e is None


def test_a_request_without_a_slot_has_no_samples() -> None:
    assert intervals(rejected()) == Intervals()


def test_without_the_stamp_the_wait_begins_at_arrival() -> None:
    assert intervals(timeline(queued=None)).admission_wait == pytest.approx(0.05)


def test_only_writing_after_the_end_is_taken_off_the_overhead() -> None:
    """Writing while the worker computes is in the worker's span already."""
    assert intervals(timeline(writing=0.5, writing_after_end=0.02)).overhead == pytest.approx(0.09)


def test_overhead_is_never_negative() -> None:
    assert intervals(timeline(worker_total=0.95)).overhead == 0.0


def test_wrote_splits_at_the_end_of_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metrics.timeline.monotonic", lambda: 5.0)
    open_request = Timeline(arrival=0.0)
    open_request.wrote(since=4.0)
    assert (open_request.writing, open_request.writing_after_end) == (1.0, 0.0)
    open_request.ended = 4.75
    open_request.wrote(since=4.5)
    assert (open_request.writing, open_request.writing_after_end) == (1.5, 0.25)


def test_phases_add_up_to_the_total_but_for_the_gateway_s_own() -> None:
    found = phases(timeline())
    assert (found.queue, found.prepare) == (pytest.approx(0.04 + 0.02), 0.03)
    assert found.compute == pytest.approx(0.8 - 0.03 - 0.02)
    assert found.total == pytest.approx(0.9)  # arrival -> ended
    assert found.encode == 0
    shown = phases(timeline(worker_encode=0.1))
    assert (shown.encode, shown.compute) == (0.1, pytest.approx(0.8 - 0.03 - 0.1 - 0.02))


def test_every_interval_is_defined() -> None:
    derived = dict(intervals(timeline(first_preview=10.3, worker_encode=0.1)).samples())
    every = [*common.METRICS, *(metric for metrics in metrics_by_kind().values() for metric in metrics)]
    histograms = {metric.key.removesuffix("_seconds") for metric in every if isinstance(metric, Histogram)}
    assert set(derived) <= histograms
    others = {"step", "image_step", "encoder_step", "first_partial", "final_latency"}  # of no one request
    assert histograms == set(derived) | others


def test_what_comes_of_images_is_counted() -> None:
    request = timeline("client_left", tokens=[], images=4, pictures=1, first_preview=10.2)
    assert intervals(request).first_preview == pytest.approx(0.2)
    assert request.images_given_up == 3
    request.outcome = "worker_lost"
    assert request.images_given_up == 0
    assert intervals(timeline()).first_preview is None
