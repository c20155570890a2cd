"""A draft model fails nobody: for lack of room, by a fault of its own, or by what it costs."""

import logging

import pytest

from pipelines.base import InvalidRequest, ModelError, StepFailed, Ticket
from pipelines.messages.text import ProposerKind, TokenPrompt
from pipelines.text.drafts.draft_model import DraftModel
from pipelines.text.drafts.ngram import SuffixIndex
from tests.pipelines.text.fakes import (
    BLOCK,
    VOCAB,
    ByteTokenizer,
    FakeDecoder,
    create_pipeline,
    draft_freely,
    generate,
    request,
    run,
    submit,
)
from tests.pipelines.text.oracle_draft import OracleDraft, drafting, drafts, model_of, plain, seen, told

# --- room -------------------------------------------------------------------------------------------------------------


def test_without_room_it_proposes_nothing() -> None:
    requests = [request(f"prompt {number}", max_tokens=30, logprobs=0) for number in range(6)]
    decoder = OracleDraft([told(each) for each in requests])
    pipeline = drafting(decoder)
    small = DraftModel(decoder, 20, vocab_size=VOCAB, max_num_batched_tokens=400)
    pipeline._speculation._proposers["draft"] = small
    draft_freely(pipeline)
    for number, each in enumerate(requests):
        submit(pipeline, str(number), each)
    events: dict[str, list[object]] = {}
    full = False
    while pipeline.busy:
        for event in pipeline.step().events:
            events.setdefault(event.id, []).append(event)
        small._blocks.check(reading.table for reading in small._readings.values())
        full = full or small._blocks.num_available == 0
    assert full
    assert [seen(events[str(number)]) for number in range(6)] == [plain(each) for each in requests]
    assert drafts(pipeline)[0] > 0
    assert small._blocks.num_used == 0


@pytest.mark.parametrize("ending", ["abort", "preempt"])
@pytest.mark.parametrize("wrong", [0, 3])
def test_no_block_stays_behind_whenever_a_sequence_leaves(ending: str, wrong: int) -> None:
    asked = request(TokenPrompt([3 * id % 251 for id in range(60)]), max_tokens=24, logprobs=0)
    other = request("another", max_tokens=40, logprobs=0)
    texts, expected, neighbour = [told(asked), told(other)], plain(asked), plain(other)
    stages = 0
    while True:
        pipeline = drafting(OracleDraft(texts, wrong), max_num_batched_tokens=32)
        model = model_of(pipeline)
        submit(pipeline, "r", asked)
        submit(pipeline, "other", other)
        events = [event for _ in range(stages) for event in pipeline.step().events]
        found = [each for each in pipeline._scheduler._running if each.ticket.id == "r"]
        if stages and not found:
            break
        if ending == "abort":
            pipeline.abort("r")
        for sequence in found:
            if ending == "preempt":
                pipeline._scheduler._preempt(sequence)
            assert sequence not in model._readings
        model._blocks.check(reading.table for reading in model._readings.values())
        while pipeline.busy:
            events += pipeline.step().events
        assert pipeline.stats().gauges["draft_kv_blocks_used"] == 0  # and the invariants hold
        assert seen([event for event in events if event.id == "other"]) == neighbour
        if ending == "preempt":
            assert seen([event for event in events if event.id == "r"]) == expected
        stages += 1
    assert stages > 6


def test_sequences_that_push_each_other_out_say_the_same() -> None:
    requests = [request(f"prompt {number}", max_tokens=40, logprobs=0) for number in range(5)]
    pipeline = drafting(OracleDraft([told(each) for each in requests], 4), kv_cache_tokens=22 * BLOCK)
    for number, each in enumerate(requests):
        submit(pipeline, str(number), each)
    together = run(pipeline)
    assert [seen(together[str(number)]) for number in range(5)] == [plain(each) for each in requests]
    assert pipeline._scheduler.num_preemptions > 0
    assert pipeline.stats().gauges["draft_kv_blocks_used"] == 0


# --- faults -----------------------------------------------------------------------------------------------------------


def test_a_draft_model_that_breaks_fails_no_request(caplog: pytest.LogCaptureFixture) -> None:
    asked, healthy = (request(prompt, max_tokens=20, logprobs=0) for prompt in ("break", "work"))
    decoder = OracleDraft([told(asked), told(healthy)], fail_on=told(asked)[8])
    pipeline = drafting(decoder)
    with caplog.at_level(logging.ERROR):
        assert seen(generate(pipeline, asked)) == plain(asked)
    assert "the draft proposer broke" in caplog.text
    before = drafts(pipeline)
    assert decoder.fail_on not in told(healthy)
    assert seen(generate(pipeline, healthy)) == plain(healthy)
    assert drafts(pipeline) > before


def test_a_step_that_is_run_again_is_proposed_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = request("some words", max_tokens=20, logprobs=0)
    pipeline = drafting(OracleDraft([told(asked)]))
    submit(pipeline, "r", asked)
    events = [event for _ in range(2) for event in pipeline.step().events]

    def breaks(_: object) -> object:
        raise RuntimeError("the forward broke")

    with monkeypatch.context() as patched:
        patched.setattr(pipeline._runner, "run", breaks)
        with pytest.raises(StepFailed):
            pipeline.step()
    events += pipeline.step(only="r").events
    assert seen(events + run(pipeline)["r"]) == plain(asked)
    drafted, accepted = drafts(pipeline)
    assert drafted == accepted > 10


def test_logits_that_are_not_finite_end_a_draft() -> None:
    asked = request("broken", max_tokens=20, logprobs=0)
    text = told(asked)
    pipeline = drafting(OracleDraft([text], poison=text[9]))
    assert seen(generate(pipeline, asked)) == plain(asked)
    drafted, accepted = drafts(pipeline)
    assert drafted == accepted > 0


# --- what it costs ----------------------------------------------------------------------------------------------------


def test_a_draft_model_that_is_no_faster_is_not_asked() -> None:
    asked = request("some words", max_tokens=20, logprobs=0)
    decoder = OracleDraft([told(asked)])
    pipeline = drafting(decoder)
    pipeline._speculation._cost = pipeline._runner.decode_cost()
    model_of(pipeline)._cost = pipeline._speculation._cost
    before = len(decoder.forwards)
    assert seen(generate(pipeline, asked)) == plain(asked)
    assert len(decoder.forwards) == before


def test_steps_are_timed_for_those_who_draft_alone() -> None:
    decoder = FakeDecoder()
    pipeline = create_pipeline(decoder)
    assert [batch.kind for batch in decoder.forwards] == ["prefill", "decode"]
    submit(pipeline, "plain", request("some words", max_tokens=5))
    run(pipeline)
    assert pipeline._speculation._cost is None
    asked = request("some words", max_tokens=5)
    submit(pipeline, "drafts", type(asked)(prompts=asked.prompts, sampling=asked.sampling, max_draft=4))
    run(pipeline)
    assert pipeline._speculation._cost is not None
    configured = FakeDecoder()
    create_pipeline(configured, speculation="ngram")
    assert len(configured.forwards) == 8


# --- who gets it ------------------------------------------------------------------------------------------------------


def test_each_request_has_the_proposer_that_it_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SuffixIndex, "propose", lambda _self, _tokens, most: [1, 2, 3, 4][:most])
    asked = request("some words", max_tokens=12, logprobs=0)
    pipeline = drafting(OracleDraft([told(asked)]), speculation=None)

    def used(kind: ProposerKind | None, most: int | None) -> str | None:
        wanted = type(asked)(prompts=asked.prompts, sampling=asked.sampling, proposer=kind, max_draft=most)
        events = generate(pipeline, wanted)
        assert seen(events) == plain(asked)
        return events[-1].usage.proposer

    assert used("draft", 4) == "draft"
    assert used(None, None) is used("draft", 0) is None
    counters = pipeline.stats().counters
    assert counters["drafts:draft"] > 0
    assert "drafts:ngram" not in counters
    assert used("ngram", 4) == "ngram"
    assert pipeline.stats().counters["drafts:ngram"] > 0
    assert pipeline.stats().counters["drafts:draft"] == counters["drafts:draft"]
    assert not pipeline._speculation._proposers["ngram"]._indices


def test_a_model_without_a_draft_model_refuses_its_kind() -> None:
    asked = request("some words")
    wanted = type(asked)(prompts=asked.prompts, sampling=asked.sampling, proposer="draft", max_draft=4)
    with pytest.raises(InvalidRequest, match="no draft model") as refused:
        create_pipeline().prepare(Ticket("r", "interactive", 0.0), wanted)
    assert refused.value.param == "speculation.kind"
    with pytest.raises(ModelError, match=r"text\.draft"):
        create_pipeline(speculation="draft")


class Renamed(ByteTokenizer):
    def token_ids(self) -> dict[str, int]:
        return {**super().token_ids(), "a": 98, "b": 97}


class Shorter(ByteTokenizer):
    vocab_size = 258


@pytest.mark.parametrize(
    ("tokenizer", "reason"),
    [(Renamed(), "token 'a' is id 97 in the model, id 98 in it"), (Shorter(), "258 tokens; the model has 259")],
)
def test_a_draft_model_with_another_vocabulary_is_refused(tokenizer: ByteTokenizer, reason: str) -> None:
    with pytest.raises(ModelError, match=rf"text\.draft: the draft model has another vocabulary.*{reason}"):
        create_pipeline(draft=FakeDecoder(), draft_tokenizer=tokenizer, speculation="draft")
