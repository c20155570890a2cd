"""The pipeline over a small encoder of our own, spoken to as the engine does."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.base import InvalidRequest, ModelError, StepFailed
from pipelines.embedding.pace import LEAST_SHARED, Pace, warm_up
from pipelines.embedding.pipeline import EmbeddingPipeline
from pipelines.messages.embedding import EmbeddingOptions, EmbeddingRequest, ImageBytes
from pipelines.messages.frames import Done, Event, Failed, ModelSpec
from pipelines.messages.text import ChoiceDone, StringPrompt, TextRequest, TokenPrompt
from tests.pipelines.embedding.bench import Bench, SmallEmbedder, embedding, last, rows, words


def test_each_request_gets_its_own_rows_by_its_own_indices(bench: Bench) -> None:
    """Batched together, each is as it is alone: no index of a merged batch leaks."""
    requests = {
        "a": embedding(words(9), words(1), words(5)),
        "b": embedding(words(5, 50), words(9, 60)),
        "c": embedding(words(2, 100)),
    }
    alone = {}
    for id, request in requests.items():
        bench.open(id, request)
        alone[id] = rows(bench.run(), id)
    for id, request in requests.items():
        bench.open(id, request)
    events = bench.run()
    assert max(bench.embedder.batches) > 1
    for id, request in requests.items():
        assert rows(events, id) == alone[id]
        assert sorted(alone[id]) == list(range(len(request.inputs)))


def test_an_end_has_the_real_tokens_and_comes_once(bench: Bench) -> None:
    bench.open("a", embedding(words(1), words(5), words(30)))
    events = bench.run()
    assert [type(event) for event in events[-2:]] == [ChoiceDone, Done]
    done = last(events, "a")
    assert isinstance(done, Done)
    assert done.usage.prompt_tokens == (1 + 5 + 30) + 3 * 2  # special tokens, no padding
    assert sum(isinstance(event, Done | Failed) for event in events) == 1


def test_more_inputs_than_a_step_takes_and_one_larger_than_it(bench: Bench) -> None:
    bench.open("a", embedding(*[words(3)] * 50, words(60)))
    assert sorted(rows(bench.run(), "a")) == list(range(51))
    assert len(bench.embedder.batches) > 5


def test_a_short_text_is_not_behind_a_large_request(bench: Bench) -> None:
    bench.open("large", embedding(*[words(8)] * 200))
    bench.pipeline.step()
    bench.open("small", embedding(words(1)))
    events = [*bench.pipeline.step().events, *bench.pipeline.step().events]
    assert isinstance(last(events, "small"), Done)


def test_dimensions_are_cut_and_of_unit_length_again(bench: Bench) -> None:
    bench.open("whole", embedding(words(3)))
    bench.open("cut", embedding(words(3), dimensions=2))
    events = bench.run()
    whole, cut = np.array(rows(events, "whole")[0]), np.array(rows(events, "cut")[0])
    np.testing.assert_allclose(cut, whole[:2] / np.linalg.norm(whole[:2]), rtol=1e-6)
    with pytest.raises(InvalidRequest, match="1 to 4") as refused:
        bench.open("more", embedding(words(3), dimensions=5))
    assert refused.value.param == "dimensions"


def test_nothing_is_run_for_one_that_has_left(bench: Bench) -> None:
    bench.open("gone", embedding(*[words(3)] * 100))
    bench.open("here", embedding(words(4)))
    bench.pipeline.abort("gone")
    bench.pipeline.abort("gone")
    events = bench.run()
    assert {event.id for event in events} == {"here"}
    assert bench.embedder.batches == [1]
    assert bench.pipeline.stats().waiting == 0


def test_a_vector_that_is_not_finite_fails_its_request_alone(bench: Bench) -> None:
    bench.embedder.infinite = 4 + 77
    bench.open("bad", embedding("w1", "w2", "w77"))
    bench.open("good", embedding("w3"))
    events = bench.run()
    failed = last(events, "bad")
    assert isinstance(failed, Failed)
    assert (failed.code, "input 2" in failed.message, "not a finite" in failed.message) == (
        "invalid_output",
        True,
        True,
    )
    assert sum(isinstance(event, Done | Failed) for event in events) == 2
    assert isinstance(last(events, "good"), Done)


def test_a_failed_step_leaves_its_requests_as_they_were(bench: Bench) -> None:
    bench.embedder.poison = 4 + 77
    bench.open("bad", embedding("w77", "w1"))
    bench.open("good", embedding("w2", "w3"))
    with pytest.raises(StepFailed) as failure:
        bench.pipeline.step()
    assert set(failure.value.request_ids) == {"bad", "good"}
    assert isinstance(last(bench.pipeline.step(only="good").events, "good"), Done)
    with pytest.raises(StepFailed) as alone:
        bench.pipeline.step(only="bad")
    assert alone.value.request_ids == ("bad",)
    bench.embedder.poison = None
    assert sorted(rows(bench.run(), "bad")) == [0, 1]


def test_token_ids_and_texts_are_the_same_thing(bench: Bench) -> None:
    bench.open("a", EmbeddingRequest(inputs=[StringPrompt("w1 w2"), TokenPrompt([2, 5, 6, 3])]))
    found = rows(bench.run(), "a")
    assert found[0] == found[1]


def test_an_image_is_refused_by_a_model_of_texts(bench: Bench) -> None:
    with pytest.raises(InvalidRequest) as refused:
        bench.open("a", EmbeddingRequest(inputs=[StringPrompt("w1"), ImageBytes(b"png")]))
    assert refused.value.param == "input[1]"


def test_texts_are_cut_to_as_many_tokens_as_the_caller_wants(bench: Bench) -> None:
    bench.open("cut", EmbeddingRequest(inputs=[StringPrompt(words(9))], truncate="end", max_tokens=5))
    bench.open("short", embedding(words(3)))
    events = bench.run()
    assert rows(events, "cut") == rows(events, "short")
    for tokens in (0, 2, 65):
        with pytest.raises(InvalidRequest, match="3 to 64") as refused:
            bench.open("r", embedding("w1", max_tokens=tokens))
        assert refused.value.param == "truncate_prompt_tokens"


def test_another_kind_of_request_is_refused(bench: Bench) -> None:
    with pytest.raises(InvalidRequest):
        bench.open("t", TextRequest(prompts=[StringPrompt("w1")]))


def test_a_step_waits_for_company_only_where_it_is_told_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("pipelines.embedding.pipeline.monotonic", lambda: now[0])
    monkeypatch.setattr("pipelines.embedding.pipeline.time.sleep", lambda seconds: None)
    bench = Bench(tmp_path, max_wait=0.01)
    bench.open("a", embedding("w1"), received=100.0)
    assert not bench.pipeline.step().events
    bench.open("b", embedding("w2"), received=100.005)
    assert not bench.pipeline.step().events
    now[0] = 100.02
    assert {event.id for event in bench.pipeline.step().events} == {"a", "b"}
    bench.open("full", embedding(*["w1 w2 w3"] * 20), received=100.02)
    assert bench.pipeline.step().events


@pytest.fixture
def two(tmp_path: Path) -> Bench:
    """With two streams, and texts padded to multiples of 16, of which a batch has one."""
    return Bench(tmp_path, tokens=128, slack=0, streams=2, multiple=16)


def test_a_batch_is_of_one_padded_length(two: Bench) -> None:
    two.open("a", embedding(*[words(count) for count in (3, 14, 15, 20, 30, 31)]))  # and 2 special tokens
    found = rows(two.run(), "a")
    assert sorted(two.embedder.batches) == [1, 2, 3]
    assert sorted(found) == list(range(6))
    counters = two.pipeline.stats().counters
    assert counters["embedding_padded_tokens"] == 2 * 16 + 3 * 32 + 48
    assert counters["embedding_tokens"] == 113 + 6 * 2


def test_a_batch_that_takes_long_does_not_hold_up_the_other_stream(two: Bench) -> None:
    gate = two.embedder.gates[4 + 77] = threading.Event()
    two.open("long", embedding("w77"))
    for id in ("a", "b"):
        two.open(id, embedding(words(20)))
        assert {event.id for event in two.pipeline.step().events} == {id}
    assert two.pipeline.busy
    assert two.pipeline.stats().running == 1
    gate.set()
    assert {event.id for event in two.run()} == {"long"}
    assert not two.pipeline.busy


def test_a_small_request_runs_beside_a_large_one(tmp_path: Path) -> None:
    bench = Bench(tmp_path, concurrency=2)
    gate = bench.embedder.gates[4 + 77] = threading.Event()
    bench.open("large", embedding(*["w77 " + words(8)] * 50))
    assert not bench.pipeline.step().events
    assert bench.pipeline.stats().running > 0
    for id in ("a", "b"):
        bench.open(id, embedding(words(3)))
        assert {event.id for event in bench.pipeline.step().events} == {id}
    gate.set()
    assert sorted(rows(bench.run(), "large")) == list(range(50))


def test_large_requests_leave_a_place_where_small_ones_come_and_go(tmp_path: Path) -> None:
    bench = Bench(tmp_path, streams=2)
    gate = bench.embedder.gates[4 + 77] = threading.Event()
    bench.open("first", embedding("w1"))
    bench.run()
    bench.open("large", embedding(*["w77 " + words(8)] * 50))
    bench.pipeline.step()
    bench.open("small", embedding("w2"))
    assert {event.id for event in bench.pipeline.step().events} == {"small"}
    gate.set()
    bench.run()


def test_large_requests_have_every_stream_where_no_small_one_comes(tmp_path: Path) -> None:
    bench = Bench(tmp_path, streams=2)
    bench.embedder.gates[4 + 77] = gate = threading.Event()
    for id in ("a", "b"):
        bench.open(id, embedding(*["w77 " + words(8)] * 50))
    bench.pipeline.step()
    assert bench.pipeline.stats().running == 2 * 3
    gate.set()
    assert {event.id for event in bench.run()} == {"a", "b"}


def test_a_request_that_leaves_while_it_runs_is_not_answered(two: Bench) -> None:
    gate = two.embedder.gates[4 + 77] = threading.Event()
    two.open("gone", embedding("w77"))
    two.open("first", embedding(words(20)))
    assert {event.id for event in two.pipeline.step().events} == {"first"}
    two.open("here", embedding("w1"))
    two.pipeline.abort("gone")
    gate.set()
    assert {event.id for event in two.run()} == {"here"}


def test_a_batch_that_fails_beside_another_fails_alone(two: Bench) -> None:
    two.embedder.poison = 4 + 77
    two.open("bad", embedding("w77"))
    two.open("good", embedding(words(20)))
    events: list[Event] = []
    failures = []
    while two.pipeline.busy and not failures:
        try:
            events += two.pipeline.step().events
        except StepFailed as failure:
            failures.append(failure)
    assert [failure.request_ids for failure in failures] == [("bad",)]
    with pytest.raises(StepFailed):
        two.pipeline.step(only="bad")
    two.pipeline.abort("bad")
    events += two.run()
    assert isinstance(last(events, "good"), Done)


def test_what_is_counted(bench: Bench) -> None:
    bench.open("a", embedding(words(6), words(3), truncate="end"))
    bench.open("b", embedding(words(100), truncate="end"))
    steps = []
    while bench.pipeline.busy:
        steps.append(bench.pipeline.step().report)
    counters = bench.pipeline.stats().counters
    assert counters == {
        "embedding_inputs": 3,
        "embedding_tokens": 8 + 5 + 64,
        "embedding_padded_tokens": 8 + 8 + 64,
        "embedding_truncated_inputs": 1,
    }
    assert sum(step.rows for step in steps if step) == 3
    assert sum(step.tokens for step in steps if step) == 77
    assert {step.kind for step in steps if step} == {"encode"}


def test_short_steps_follow_the_machines_pace() -> None:
    pace = Pace(1024, 8, rate=20_000)
    assert (pace.budget.full, pace.budget.shared) == (1024, 160)
    for _ in range(200):
        pace.observe(1024, 0.2)  # 5,120 a second
    assert pace.budget.shared == LEAST_SHARED
    for _ in range(200):
        pace.observe(1024, 0.001)
    assert pace.budget.shared == 1024


@pytest.mark.parametrize(("streams", "tokens", "slack"), [(1, 1024, 8), (2, 512, 0)])
def test_steps_that_run_at_once_share_what_fits_the_caches(streams: int, tokens: int, slack: int) -> None:
    embedder: Any = SmallEmbedder(streams=streams, multiple=16)
    budget = warm_up(embedder, None).budget
    assert (budget.full, budget.slack) == (tokens, slack)
    assert embedder.batches == [tokens // 32] * 3
    assert warm_up(embedder, 64).budget.full == 64


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"quantization": "int4"}, "int8"),
        ({"dtype": "bfloat16", "quantization": "int8"}, "leave quantization or dtype out"),
        ({"dtype": "int8"}, "not in int8"),
        ({"dtype": "float16"}, "GPU"),
        ({"options": EmbeddingOptions(dynamic_int8=True)}, "quantization"),
        ({"source": "/nowhere"}, "/nowhere"),
    ],
)
def test_what_cannot_be_loaded_says_why(fields: dict[str, Any], reason: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert", "hidden_size": 4, "vocab_size": 9}')
    spec = {"name": "e", "kind": "embedding", "pipeline": "", "source": str(tmp_path), "device": "cpu"}
    spec |= {"options": EmbeddingOptions(), **fields}
    with pytest.raises(ModelError, match=reason):
        EmbeddingPipeline.load(ModelSpec(**spec))
