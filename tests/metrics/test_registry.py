from bisect import bisect_left

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from metrics.definitions import common, text
from metrics.metric import MAX_LABEL_VALUES, ROWS
from metrics.registry import Registry
from pipelines.kinds import metrics_by_kind
from tests.metrics.factories import rejected, timeline
from tests.metrics.test_percentiles import Clock

M = ("smol", "text")


def samples(registry: Registry) -> dict[tuple[str, ...], float]:
    """(name, label values but model and pipeline) -> value, of one model."""
    body, _ = registry.render()
    return {
        (
            sample.name,
            *(value for label, value in sample.labels.items() if label not in ("model", "pipeline")),
        ): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def stats(registry: Registry, worker_id: str, hits: float = 0, running: int = 0, used: float = 0) -> None:
    registry.stats(*M, running, 1, {"prefix_hit_tokens": hits}, {"kv_blocks_used": used}, worker_id)


def test_every_definition_is_rendered() -> None:
    registry = Registry(metrics_by_kind())
    registry.request(*M, timeline())
    body, content_type = registry.render()
    families = {family.name: family for family in text_string_to_metric_families(body.decode())}
    every = [*common.METRICS, *(metric for metrics in metrics_by_kind().values() for metric in metrics)]
    assert set(families) == {metric.name.removesuffix("_total") for metric in every}
    assert all(families[metric.name.removesuffix("_total")].documentation == metric.document for metric in every)
    assert content_type.startswith("text/plain")
    assert registry.render("application/openmetrics-text; version=1.0.0")[0].endswith(b"# EOF\n")


def test_a_request_is_observed_once_in_each_histogram() -> None:
    registry = Registry(metrics_by_kind())
    registry.request(*M, timeline(cached_tokens=4))
    found = samples(registry)
    for name in ("admission_wait", "queue", "prepare", "e2e", "overhead", "ttft", "tpot", "prefill", "decode"):
        assert found[f"gateway_{name}_seconds_count",] == 1, name
    assert found["gateway_itl_seconds_count",] == 2
    assert found["gateway_requests_total", "stop"] == found["gateway_requests_admitted_total",] == 1
    tokens = [found[f"gateway_{name}_tokens_total",] for name in ("prompt", "cached", "generated")]
    assert tokens == [7, 4, 3]


def test_counts_follow_the_definitions() -> None:
    """Five finished, two of three choices, two cancelled (one before a token), one failed, one refused."""
    registry = Registry(metrics_by_kind())
    three = [(10.5, 0, 1), (10.5, 1, 1), (10.5, 2, 1), (10.6, 0, 1), (10.6, 1, 1), (10.6, 2, 1)]
    requests = [*(timeline() for _ in range(5)), *(timeline(tokens=three) for _ in range(2))]
    requests += [
        timeline("cancelled"),
        timeline("cancelled", tokens=[]),
        timeline("worker_lost", tokens=[]),
        rejected(),
    ]
    for request in requests:
        registry.request(*M, request)
    registry.rejected(*M, "queue_full")
    found = samples(registry)
    assert found["gateway_requests_admitted_total",] == 10
    assert found["gateway_ttft_seconds_count",] == 8
    assert found["gateway_tpot_seconds_count",] == 5 + 2 * 3
    assert found["gateway_itl_seconds_count",] == 6 * 2 + 2 * 3
    assert found["gateway_e2e_seconds_count",] == 8  # finished and failed
    assert found["gateway_decode_seconds_count",] == found["gateway_overhead_seconds_count",] == 7
    assert found["gateway_requests_total", "overloaded"] == found["gateway_rejections_total", "queue_full"] == 1
    assert found["gateway_slo_requests_total",] == 9  # finished, failed, rejected
    assert found["gateway_slo_met_requests_total",] == 7
    assert found["gateway_ttft_seconds_bucket", "0.005"] == 0  # none in the lowest bucket


def test_histograms_are_exact_for_one_value_and_for_many() -> None:
    bounds = text.ITL.buckets
    values = [0.0001, 0.0005, 0.00051, 0.01, 0.049, 0.05, 4.9, 5.0, 9.0]
    expected = [sum(bisect_left(bounds, value) <= index for value in values) for index in range(len(bounds) + 1)]
    for groups in ([tuple(values)], values):
        registry = Registry(metrics_by_kind())
        series = registry._of(*M)
        for group in groups:
            series.observe(text.ITL, group)
        assert [count for _, count in series.distributions[text.ITL, ""].cumulative()] == expected


def test_counters_of_workers_survive_a_restart() -> None:
    registry = Registry(metrics_by_kind())
    stats(registry, "0:1", hits=5)
    stats(registry, "0:1", hits=8)
    registry.worker_gone(*M, "0:1")
    registry.worker_restart(*M)
    stats(registry, "0:2", hits=3)
    stats(registry, "1:1", hits=10)
    found = samples(registry)
    assert found["gateway_prefix_hit_tokens_total",] == 21
    assert found["gateway_worker_restarts_total",] == 1


def test_gauges_add_up_over_workers_and_go_with_them() -> None:
    registry = Registry(metrics_by_kind())
    registry.admission(*M, lambda: (32, 5, 2))
    stats(registry, "0:1", running=3, used=7)
    stats(registry, "1:1", running=2, used=4)
    registry.memory(*M, 100, "0:1")
    assert samples(registry)["gateway_running",] == 5
    assert samples(registry)["gateway_kv_blocks_used",] == 11
    registry.worker_gone(*M, "0:1")
    registry.worker_gone(*M, "0:1")
    found = samples(registry)
    assert (found["gateway_running",], found["gateway_kv_blocks_used",], found["gateway_resident_bytes",]) == (2, 4, 0)
    assert (found["gateway_slots",], found["gateway_slots_used",], found["gateway_queued",]) == (32, 5, 2)


def test_no_gauge_outlives_the_last_live_replica() -> None:
    registry = Registry(metrics_by_kind())
    registry.worker_state(*M, "0", "ready")
    registry.worker_state(*M, "1", "ready")
    stats(registry, "0:1", running=3)
    registry.worker_state(*M, "1", "restarting")
    assert samples(registry)["gateway_running",] == 3
    registry.worker_state(*M, "0", "failed")
    found = samples(registry)
    assert found["gateway_running",] == 0
    assert (found["gateway_workers", "ready"], found["gateway_workers", "failed"]) == (0, 1)


def test_labels_are_bounded() -> None:
    registry = Registry(metrics_by_kind())
    for number in range(100):
        registry.rejected(*M, f"reason {number}")
    found = samples(registry)
    reasons = {key[1]: value for key, value in found.items() if key[0] == "gateway_rejections_total"}
    assert len(reasons) == MAX_LABEL_VALUES + 1
    assert reasons["other"] == 100 - MAX_LABEL_VALUES


def test_what_no_worker_metric_of_the_kind_is_is_complained_of_once(unknown_series: list[str]) -> None:
    registry = Registry(metrics_by_kind())
    told = [
        {"nonsense": 1.0},  # nowhere
        {"generated_tokens": 1.0},  # counted in the gateway
        {"embedding_tokens": 1.0},  # of another kind
    ]
    for counters in (*told, *told):
        registry.stats(*M, 0, 0, counters, counters, "0:1")
    assert [name for name in ("nonsense", "generated_tokens", "embedding_tokens") if name in str(unknown_series)]
    assert len(unknown_series) == 3
    assert samples(registry)["gateway_generated_tokens_total",] == 0
    unknown_series.clear()


def test_labels_of_a_metric_that_has_two() -> None:
    registry = Registry(metrics_by_kind())
    counters = {"accepted_at:ngram:2": 4, "accepted_at:draft:2": 3, "accepted_at:draft:0": 5, "drafts:draft": 9}
    registry.stats(*M, 0, 0, counters, {}, "0:1")
    found = samples(registry)  # (position, proposer): labels are sorted
    assert found["gateway_accepted_at_total", "2", "ngram"] == 4
    assert [found["gateway_accepted_at_total", place, "draft"] for place in "02"] == [5, 3]
    assert found["gateway_drafts_total", "draft"] == 9
    (snapshot,) = registry.snapshot().models
    assert snapshot.counters["accepted_at:draft:2"] == 3
    for position in range(MAX_LABEL_VALUES):
        registry.stats(*M, 0, 0, {f"accepted_at:draft:{position + 10}": 1}, {}, "0:1")
    assert samples(registry)["gateway_accepted_at_total", "other", "other"] == 3


def test_steps_by_kind() -> None:
    registry = Registry(metrics_by_kind())
    registry.step(*M, "decode", 4, 4, 0.006)
    registry.step(*M, "decode", 2, 2, 0.004)
    found = samples(registry)
    assert found["gateway_step_seconds_count", "decode"] == 2
    assert (found["gateway_step_rows_total", "decode"], found["gateway_step_tokens_total", "decode"]) == (6, 6)


def test_another_pipeline_has_the_common_metrics_only() -> None:
    registry = Registry(metrics_by_kind())
    registry.request("fake", "other", timeline())
    names = {name for name, *_ in samples(registry)}
    assert "gateway_e2e_seconds_count" in names
    assert not any("ttft" in name or "prompt_tokens" in name or "kv_" in name for name in names)


def test_snapshot() -> None:
    clock = Clock()
    registry = Registry(metrics_by_kind(), clock)
    registry.set_slo("smol", {"ttft_ms": 400.0, "itl_ms": None})
    registry.worker_state(*M, "0", "ready")
    registry.request(*M, timeline())
    registry.set_slo("smol", {"ttft_ms": 600.0, "itl_ms": None})
    clock.now += 120
    registry.request(*M, timeline())
    stats(registry, "0:1", running=1)
    registry.step(*M, "prefill", 1, 64, 0.05)
    (model,) = msgspec.json.decode(msgspec.json.encode(registry.snapshot()))["models"]
    assert (model["model"], model["pipeline"], model["workers"]) == ("smol", "text", {"0": "ready"})
    assert model["slo"] == {"ttft_ms": 600.0}
    assert model["goodput"]["1m"] == {"requests": 1, "met": 1, "share": 1.0}
    assert model["goodput"]["start"] == {"requests": 2, "met": 1, "share": 0.5}
    windows = {name: window["ttft_seconds"]["count"] for name, window in model["windows"].items()}
    assert windows == {"1m": 1, "15m": 2, "start": 2}
    ttft = model["windows"]["1m"]["ttft_seconds"]
    assert all(abs(ttft[name] - 0.5) < 0.006 for name in ("mean", "p50", "p90", "p95", "p99"))
    assert model["windows"]["1m"]["step_seconds:prefill"]["count"] == 1
    assert model["windows"]["1m"]["decode_seconds"]["p50"] is not None
    assert model["counters"]["requests:stop"] == 2
    assert model["gauges"]["running"] == 1


def test_denoising_steps_are_told_by_their_rows() -> None:
    registry = Registry(metrics_by_kind())
    for rows in range(1, 41):
        registry.step("painter", "image", "denoise", rows, 0, 0.1)
    registry.step("painter", "image", "decode", 1, 0, 0.1)
    found = samples(registry)
    counts = {label: found["gateway_image_step_seconds_count", label] for label in ROWS}
    assert counts == {"1": 1, "2": 1, "3-4": 2, "5-8": 4, "9-16": 8, "17-32": 16, "33+": 8}
    assert found["gateway_step_seconds_count", "denoise"] == 40
    assert found["gateway_step_rows_total", "denoise"] == sum(range(1, 41))


def test_images_are_counted_when_their_request_is_closed() -> None:
    registry = Registry(metrics_by_kind())
    drawn = timeline(tokens=[], images=3, pictures=3, image_steps=30, first_preview=10.4)
    left = timeline("client_left", tokens=[], images=4, pictures=1, image_steps=12)
    for each in (drawn, left, timeline("internal_error", tokens=[], images=2, image_steps=1)):
        registry.request("painter", "image", each)
    found = samples(registry)
    assert found["gateway_images_total",] == 4
    assert found["gateway_image_steps_total",] == 43
    assert found["gateway_images_cancelled_total",] == 3
    assert found["gateway_first_preview_seconds_count",] == 1
