"""The pipeline over a small encoder of our own, spoken to as the engine does."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.base import InvalidRequest, ModelError, StepFailed
from pipelines.embedding.pipeline import EmbeddingPipeline
from pipelines.embedding.step_budget import LEAST_SHARED, StepBudget, warm_up
from pipelines.messages.embedding import EmbeddingOptions, EmbeddingRequest, ImageBytes
from pipelines.messages.frames import Done, Event, Failed, ModelSpec
from pipelines.messages.text import ChoiceDone, StringPrompt, TokenPrompt
from tests.pipelines.embedding.driver import EmbeddingDriver, SmallEmbedder, embedding, last, rows, words


def test_each_request_gets_its_own_rows_by_its_own_indices(driver: EmbeddingDriver) -> None:
    """Batched together, each is as it is alone: no index of a merged batch leaks."""
    requests = {
        "a": embedding(words(9), words(1), words(5)),
        "b": embedding(words(5, 50), words(9, 60)),
        "c": embedding(words(2, 100)),
    }
    alone = {}
    for id, request in requests.items():
        driver.open(id, request)
        alone[id] = rows(driver.run(), id)
    for id, request in requests.items():
        driver.open(id, request)
    events = driver.run()
    assert max(driver.embedder.batches) > 1
    for id, request in requests.items():
        assert rows(events, id) == alone[id]
        assert sorted(alone[id]) == list(range(len(request.inputs)))


def test_an_end_has_the_real_tokens_and_comes_once(driver: EmbeddingDriver) -> None:
    driver.open("a", embedding(words(1), words(5), words(30)))
    events = driver.run()
    assert [type(event) for event in events[-2:]] == [ChoiceDone, Done]
    done = last(events, "a")
    assert isinstance(done, Done)
    assert done.usage.prompt_tokens == (1 + 5 + 30) + 3 * 2  # special tokens, no padding
    assert sum(isinstance(event, Done | Failed) for event in events) == 1


def test_more_inputs_than_a_step_takes_and_one_larger_than_it(driver: EmbeddingDriver) -> None:
    driver.open("a", embedding(*[words(3)] * 50, words(60)))
    assert sorted(rows(driver.run(), "a")) == list(range(51))
    assert len(driver.embedder.batches) > 5


def test_a_short_text_is_not_behind_a_large_request(driver: EmbeddingDriver) -> None:
    driver.open("large", embedding(*[words(8)] * 200))
    driver.pipeline.step()
    driver.open("small", embedding(words(1)))
    events = [*driver.pipeline.step().events, *driver.pipeline.step().events]
    assert isinstance(last(events, "small"), Done)


def test_dimensions_are_cut_and_of_unit_length_again(driver: EmbeddingDriver) -> None:
    driver.open("whole", embedding(words(3)))
    driver.open("cut", embedding(words(3), dimensions=2))
    events = driver.run()
    whole, cut = np.array(rows(events, "whole")[0]), np.array(rows(events, "cut")[0])
    np.testing.assert_allclose(cut, whole[:2] / np.linalg.norm(whole[:2]), rtol=1e-6)
    with pytest.raises(InvalidRequest, match="1 to 4") as refused:
        driver.open("more", embedding(words(3), dimensions=5))
    assert refused.value.param == "dimensions"


def test_nothing_is_run_for_one_that_has_left(driver: EmbeddingDriver) -> None:
    driver.open("gone", embedding(*[words(3)] * 100))
    driver.open("here", embedding(words(4)))
    driver.pipeline.abort("gone")
    driver.pipeline.abort("gone")
    events = driver.run()
    assert {event.id for event in events} == {"here"}
    assert driver.embedder.batches == [1]
    assert driver.pipeline.stats().waiting == 0


def test_a_vector_that_is_not_finite_fails_its_request_alone(driver: EmbeddingDriver) -> None:
    driver.embedder.infinite = 4 + 77
    driver.open("bad", embedding("w1", "w2", "w77"))
    driver.open("good", embedding("w3"))
    events = driver.run()
    failed = last(events, "bad")
    assert isinstance(failed, Failed)
    assert (failed.code, "input 2" in failed.message, "not a finite" in failed.message) == (
        "invalid_output",
        True,
        True,
    )
    assert sum(isinstance(event, Done | Failed) for event in events) == 2
    assert isinstance(last(events, "good"), Done)


def test_a_failed_step_leaves_its_requests_as_they_were(driver: EmbeddingDriver) -> None:
    driver.embedder.poison = 4 + 77
    driver.open("bad", embedding("w77", "w1"))
    driver.open("good", embedding("w2", "w3"))
    with pytest.raises(StepFailed) as failure:
        driver.pipeline.step()
    assert set(failure.value.request_ids) == {"bad", "good"}
    assert isinstance(last(driver.pipeline.step(only="good").events, "good"), Done)
    with pytest.raises(StepFailed) as alone:
        driver.pipeline.step(only="bad")
    assert alone.value.request_ids == ("bad",)
    driver.embedder.poison = None
    assert sorted(rows(driver.run(), "bad")) == [0, 1]


def test_token_ids_and_texts_are_the_same_thing(driver: EmbeddingDriver) -> None:
    driver.open("a", EmbeddingRequest(inputs=[StringPrompt("w1 w2"), TokenPrompt([2, 5, 6, 3])]))
    found = rows(driver.run(), "a")
    assert found[0] == found[1]


def test_an_image_is_refused_by_a_model_of_texts(driver: EmbeddingDriver) -> None:
    with pytest.raises(InvalidRequest) as refused:
        driver.open("a", EmbeddingRequest(inputs=[StringPrompt("w1"), ImageBytes(b"png")]))
    assert refused.value.param == "input[1]"


def test_texts_are_cut_to_as_many_tokens_as_the_caller_wants(driver: EmbeddingDriver) -> None:
    driver.open("cut", EmbeddingRequest(inputs=[StringPrompt(words(9))], truncate="end", max_tokens=5))
    driver.open("short", embedding(words(3)))
    events = driver.run()
    assert rows(events, "cut") == rows(events, "short")
    for tokens in (0, 2, 65):
        with pytest.raises(InvalidRequest, match="3 to 64") as refused:
            driver.open("r", embedding("w1", max_tokens=tokens))
        assert refused.value.param == "truncate_prompt_tokens"


def test_a_step_waits_for_more_requests_only_where_it_is_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("pipelines.embedding.pipeline.monotonic", lambda: now[0])
    monkeypatch.setattr("pipelines.embedding.pipeline.time.sleep", lambda seconds: None)
    driver = EmbeddingDriver(tmp_path, max_wait=0.01)
    driver.open("a", embedding("w1"), received=100.0)
    assert not driver.pipeline.step().events
    driver.open("b", embedding("w2"), received=100.005)
    assert not driver.pipeline.step().events
    now[0] = 100.02
    assert {event.id for event in driver.pipeline.step().events} == {"a", "b"}
    driver.open("full", embedding(*["w1 w2 w3"] * 20), received=100.02)
    assert driver.pipeline.step().events


@pytest.fixture
def two(tmp_path: Path) -> EmbeddingDriver:
    """With two streams, and texts padded to multiples of 16, of which a batch has one."""
    return EmbeddingDriver(tmp_path, tokens=128, slack=0, streams=2, multiple=16)


def test_a_batch_is_of_one_padded_length(two: EmbeddingDriver) -> None:
    two.open("a", embedding(*[words(count) for count in (3, 14, 15, 20, 30, 31)]))  # and 2 special tokens
    found = rows(two.run(), "a")
    assert sorted(two.embedder.batches) == [1, 2, 3]
    assert sorted(found) == list(range(6))
    counters = two.pipeline.stats().counters
    assert counters["embedding_padded_tokens"] == 2 * 16 + 3 * 32 + 48
    assert counters["embedding_tokens"] == 113 + 6 * 2


def test_a_batch_that_takes_long_does_not_hold_up_the_other_stream(two: EmbeddingDriver) -> None:
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
    driver = EmbeddingDriver(tmp_path, concurrency=2)
    gate = driver.embedder.gates[4 + 77] = threading.Event()
    driver.open("large", embedding(*["w77 " + words(8)] * 50))
    assert not driver.pipeline.step().events
    assert driver.pipeline.stats().running > 0
    for id in ("a", "b"):
        driver.open(id, embedding(words(3)))
        assert {event.id for event in driver.pipeline.step().events} == {id}
    gate.set()
    assert sorted(rows(driver.run(), "large")) == list(range(50))


def test_large_requests_leave_a_place_where_small_ones_come_and_go(tmp_path: Path) -> None:
    driver = EmbeddingDriver(tmp_path, streams=2)
    gate = driver.embedder.gates[4 + 77] = threading.Event()
    driver.open("first", embedding("w1"))
    driver.run()
    driver.open("large", embedding(*["w77 " + words(8)] * 50))
    driver.pipeline.step()
    driver.open("small", embedding("w2"))
    assert {event.id for event in driver.pipeline.step().events} == {"small"}
    gate.set()
    driver.run()


def test_large_requests_have_every_stream_where_no_small_one_comes(tmp_path: Path) -> None:
    driver = EmbeddingDriver(tmp_path, streams=2)
    driver.embedder.gates[4 + 77] = gate = threading.Event()
    for id in ("a", "b"):
        driver.open(id, embedding(*["w77 " + words(8)] * 50))
    driver.pipeline.step()
    assert driver.pipeline.stats().running == 2 * 3
    gate.set()
    assert {event.id for event in driver.run()} == {"a", "b"}


def test_a_request_that_leaves_while_it_runs_is_not_answered(two: EmbeddingDriver) -> None:
    gate = two.embedder.gates[4 + 77] = threading.Event()
    two.open("gone", embedding("w77"))
    two.open("first", embedding(words(20)))
    assert {event.id for event in two.pipeline.step().events} == {"first"}
    two.open("here", embedding("w1"))
    two.pipeline.abort("gone")
    gate.set()
    assert {event.id for event in two.run()} == {"here"}


def test_a_batch_that_fails_beside_another_fails_alone(two: EmbeddingDriver) -> None:
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


def test_what_is_counted(driver: EmbeddingDriver) -> None:
    driver.open("a", embedding(words(6), words(3), truncate="end"))
    driver.open("b", embedding(words(100), truncate="end"))
    steps = []
    while driver.pipeline.busy:
        steps.append(driver.pipeline.step().report)
    counters = driver.pipeline.stats().counters
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
    step_budget = StepBudget(1024, 8, rate=20_000)
    assert (step_budget.budget.full, step_budget.budget.shared) == (1024, 160)
    for _ in range(200):
        step_budget.observe(1024, 0.2)  # 5,120 a second
    assert step_budget.budget.shared == LEAST_SHARED
    for _ in range(200):
        step_budget.observe(1024, 0.001)
    assert step_budget.budget.shared == 1024


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
