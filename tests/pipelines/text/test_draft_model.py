"""A draft model reads what a sequence says, proposes what comes next, and takes back what was not said."""

import logging
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from pipelines.base import InvalidRequest, ModelError, StepFailed, Ticket
from pipelines.messages import ProposerKind, TextRequest, TokenPrompt
from pipelines.text.draft_model import PATIENCE, SHORT, DraftModel
from pipelines.text.ngram import SuffixIndex
from pipelines.text.pipeline import TextPipeline
from pipelines.text.step_cost import StepCost
from tests.pipelines.text.fakes import (
    BLOCK,
    EOS,
    VOCAB,
    ByteTokenizer,
    FakeDecoder,
    create_pipeline,
    draft_freely,
    generate,
    only,
    request,
    run,
    submit,
)

MOST = 4
SETTINGS: list[dict[str, object]] = [
    {},
    {"temperature": 1.0, "seed": 7},
    {"temperature": 0.7, "seed": 3, "top_p": 0.9, "frequency_penalty": 1.0, "repetition_penalty": 1.3},
    {"temperature": 1.0, "seed": 5, "min_tokens": 4, "stop_token_ids": list(range(100))},
]


class Prompter(FakeDecoder):
    """Knows what will be said, and is wrong at every `wrong`-th position of a text; 0: never. It goes by what its cache
    holds: where that isn't the text so far, what it says is wrong too."""

    def __init__(self, texts: Sequence[Sequence[int]], wrong: int = 0, **options: object) -> None:
        super().__init__(**options)
        self.texts = [list(text) for text in texts]
        self.wrong = wrong

    def logits(self, seen: np.ndarray) -> torch.Tensor:
        if seen[-1, 0] == self.poison:
            return torch.full((VOCAB,), torch.nan)
        said = seen[:, 0].tolist()
        text = next((text for text in self.texts if len(text) > len(said) and text[: len(said)] == said), None)
        token = 200 if text is None else text[len(said)]
        logits = torch.zeros(VOCAB)
        logits[(token + 1) % 256 if self.wrong and len(said) % self.wrong == 0 else token] = 1.0
        return logits

    def batches(self, kind: str) -> list[list[int]]:
        """Rows of each segment of its forwards, but those that were timed."""
        return [
            [segment.length for segment in batch.segments]
            for batch in self.forwards
            if batch.kind == kind and not (len(batch.segments) == 1 and set(batch.ids.tolist()) == {0})
        ]


def plain(asked: TextRequest) -> tuple[object, ...]:
    return seen(generate(create_pipeline(), asked))


def seen(events: object) -> tuple[object, ...]:
    outcome = only(events)
    return outcome.text, outcome.logprobs, outcome.reason


def told(asked: TextRequest, said: tuple[object, ...] | None = None) -> list[int]:
    """Prompt and output; `said`: what `plain` gives."""
    (prompt,) = asked.prompts
    ids = prompt.ids if isinstance(prompt, TokenPrompt) else list(prompt.text.encode())
    return [*ids, *(entry.id for entry in (said or plain(asked))[1])]


def drafting(decoder: FakeDecoder, **options: object) -> TextPipeline:
    pipeline = create_pipeline(
        draft=decoder, **{"speculation": "draft", "max_draft": MOST, "max_num_batched_tokens": 400, **options}
    )
    draft_freely(pipeline)
    return pipeline


def drafts(pipeline: TextPipeline) -> tuple[int, int]:
    """Drafted and accepted, by the draft model."""
    counters = pipeline.stats().counters
    return int(counters.get("drafted_tokens:draft", 0)), int(counters.get("accepted_tokens:draft", 0))


def model_of(pipeline: TextPipeline) -> DraftModel:
    found = pipeline._speculation._proposers["draft"]
    assert isinstance(found, DraftModel)
    return found


# --- what is said -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("wrong", [0, 1, 3])
def test_drafts_of_any_quality_change_nothing(settings: dict[str, object], wrong: int) -> None:
    prompts = [f"prompt {number} " + "abcd" * number for number in range(6)]
    requests = [
        request(prompt, logprobs=2, max_tokens=5 + 3 * number, **settings) for number, prompt in enumerate(prompts)
    ]
    alone = [plain(each) for each in requests]
    pipeline = drafting(Prompter([told(each, said) for each, said in zip(requests, alone, strict=True)], wrong))
    for number, each in enumerate(requests):
        submit(pipeline, str(number), each)
    together = run(pipeline)
    assert [seen(together[str(number)]) for number in range(len(requests))] == alone
    drafted, accepted = drafts(pipeline)
    assert drafted > 0
    assert accepted == 0 if wrong == 1 else 0 < accepted <= drafted
    if "stop_token_ids" not in settings:  # it can't know what stands behind an end
        assert (accepted == drafted) == (wrong == 0)
    assert pipeline.stats().gauges["draft_kv_blocks_used"] == 0


@pytest.mark.parametrize("wrong", [1, 2, 5, 0])
@pytest.mark.parametrize("length", [3, 20, 60])  # of the prompt: read as decode rows, or as a prefill
def test_what_was_not_said_is_taken_back(wrong: int, length: int) -> None:
    """Every proposal is as right as it can be: none is made behind keys and values of words that nobody said."""
    output = 45
    asked = request(TokenPrompt([3 * id % 251 for id in range(length)]), max_tokens=output, logprobs=0)
    text = told(asked)
    expected = [0, 0]  # drafted, accepted
    position = length + 1
    while position < len(text):
        draft = min(MOST, len(text) - position - 1)
        right = 0
        while right < draft and not (wrong and (position + right) % wrong == 0):
            right += 1
        expected[0] += draft
        expected[1] += right
        position += right + 1
    pipeline = drafting(Prompter([text], wrong))
    assert told(asked, seen(generate(pipeline, asked))) == text
    assert drafts(pipeline) == tuple(expected)


def test_what_was_not_said_is_taken_back_after_a_pause_too() -> None:
    asked = request(TokenPrompt([1, 2, 3]), max_tokens=30, logprobs=0)
    decoder = Prompter([told(asked)], wrong=1)
    pipeline = drafting(decoder)
    submit(pipeline, "r", asked)
    events = [event for _ in range(3) for event in pipeline.step().events]
    assert drafts(pipeline) == (2 * MOST, 0)
    pipeline._speculation._cost = StepCost(0.0, 1.0)  # rows cost as much as steps
    events += [event for _ in range(2 * MOST) for event in pipeline.step().events]
    assert drafts(pipeline) == (2 * MOST, 0)
    draft_freely(pipeline)
    decoder.wrong = 0
    assert seen(events + run(pipeline)["r"]) == plain(asked)
    drafted, accepted = drafts(pipeline)
    assert drafted - 2 * MOST == accepted > MOST


def test_all_sequences_of_a_step_share_its_forwards() -> None:
    requests = [request(f"prompt {number}", max_tokens=11, logprobs=0) for number in range(5)]
    decoder = Prompter([told(each) for each in requests])
    pipeline = drafting(decoder)
    for number, each in enumerate(requests):
        submit(pipeline, str(number), each)
    run(pipeline)
    batches = decoder.batches("decode")
    assert [len(batch) for batch in batches] == [5] * len(batches)
    assert batches[:5] == [[9] * 5, [1] * 5, [1] * 5, [1] * 5, [2] * 5]  # what was said last, then word for word


def test_a_draft_ends_where_the_text_would() -> None:
    for settings, end in (({"stop_token_ids": [7]}, 7), ({"ignore_eos": False}, EOS)):
        asked = request("some words", max_tokens=20, logprobs=0, **settings)
        decoder = Prompter([[*told(asked)[:13], end, 1, 2, 3]])
        pipeline = drafting(decoder, max_draft=8)
        submit(pipeline, "r", asked)
        pipeline.step()
        pipeline.step()
        assert decoder.batches("decode") == [[11], [1], [1]]  # the third says the end


# --- what it reads ----------------------------------------------------------------------------------------------------


def test_a_long_prompt_is_read_in_parts_while_the_text_goes_on() -> None:
    asked = request(TokenPrompt([5 * id % 251 for id in range(90)]), max_tokens=30, logprobs=0)
    decoder = Prompter([told(asked)])
    pipeline = drafting(decoder, max_num_batched_tokens=40)
    submit(pipeline, "r", asked)
    events = []
    while pipeline.busy and not decoder.batches("decode"):
        events += pipeline.step().events
    assert decoder.batches("prefill") == [[40], [40]]  # then it is near enough
    assert sum(decoder.batches("decode")[0]) < SHORT
    assert seen(events + run(pipeline)["r"]) == plain(asked)
    drafted, accepted = drafts(pipeline)
    assert drafted == accepted > 15


def test_nothing_is_read_for_a_text_that_is_about_to_end() -> None:
    length = 80
    for left, reads in ((length // PATIENCE - 2, False), (length // PATIENCE + 2, True)):
        asked = request(TokenPrompt(list(range(length))), max_tokens=left + 1)
        decoder = Prompter([])
        pipeline = drafting(decoder)
        generate(pipeline, asked)
        assert bool(decoder.batches("prefill")) == reads


def test_a_prompt_that_was_read_before_is_not_read_again() -> None:
    prompt = [7 * id % 251 for id in range(70)]
    asked = request(TokenPrompt(prompt), max_tokens=30, logprobs=0)
    decoder = Prompter([told(asked)])
    pipeline = drafting(decoder)
    first = generate(pipeline, asked)
    read = decoder.batches("prefill")
    assert read == [[70]]
    assert seen(generate(pipeline, asked)) == seen(first)
    assert decoder.batches("prefill") == read
    drafted, accepted = drafts(pipeline)
    assert drafted == accepted
    other = request(TokenPrompt(prompt), max_tokens=30, logprobs=0, salt="another tenant")
    generate(pipeline, other)
    assert decoder.batches("prefill") == [*read, [70]]


@pytest.mark.parametrize("vocabulary", ["model", "draft"])
def test_a_padded_vocabulary_is_no_other(vocabulary: str) -> None:
    """An id that one of the two has no row for is neither proposed nor read."""
    asked = request(TokenPrompt([1, 2, 263 if vocabulary == "model" else 3]), max_tokens=10, logprobs=0)
    decoder = Prompter([[*told(asked)[:5], 263, 263]])
    if vocabulary == "model":
        decoder.config.vocab_size = 260
    pipeline = drafting(decoder)
    if vocabulary == "draft":
        model_of(pipeline)._vocab_size = 260
    before = len(decoder.forwards)
    assert seen(generate(pipeline, asked)) == plain(asked)
    rows = [id for batch in decoder.forwards[before:] for id in batch.ids.tolist()]
    assert rows == [] if vocabulary == "model" else 263 not in rows


def test_beyond_its_own_context_it_says_nothing() -> None:
    asked = request(TokenPrompt([1, 2, 3]), max_tokens=40, logprobs=0)
    decoder = Prompter([told(asked)], context=20)
    pipeline = drafting(decoder)
    assert seen(generate(pipeline, asked)) == plain(asked)
    assert max(int(batch.positions.max()) for batch in decoder.forwards) < 20
    assert drafts(pipeline)[1] > 8


# --- room -------------------------------------------------------------------------------------------------------------


def test_without_room_it_proposes_nothing() -> None:
    requests = [request(f"prompt {number}", max_tokens=30, logprobs=0) for number in range(6)]
    decoder = Prompter([told(each) for each in requests])
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
        pipeline = drafting(Prompter(texts, wrong), max_num_batched_tokens=32)
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
    pipeline = drafting(Prompter([told(each) for each in requests], 4), kv_cache_tokens=22 * BLOCK)
    for number, each in enumerate(requests):
        submit(pipeline, str(number), each)
    together = run(pipeline)
    assert [seen(together[str(number)]) for number in range(5)] == [plain(each) for each in requests]
    assert pipeline._scheduler.num_preemptions > 0
    assert pipeline.stats().gauges["draft_kv_blocks_used"] == 0


# --- faults -----------------------------------------------------------------------------------------------------------


def test_a_draft_model_that_breaks_fails_no_request(caplog: pytest.LogCaptureFixture) -> None:
    asked, healthy = (request(prompt, max_tokens=20, logprobs=0) for prompt in ("break", "work"))
    decoder = Prompter([told(asked), told(healthy)], fail_on=told(asked)[8])
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
    pipeline = drafting(Prompter([told(asked)]))
    submit(pipeline, "r", asked)
    events = [event for _ in range(2) for event in pipeline.step().events]

    def breaks(_: object) -> torch.Tensor:
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
    pipeline = drafting(Prompter([text], poison=text[9]))
    assert seen(generate(pipeline, asked)) == plain(asked)
    drafted, accepted = drafts(pipeline)
    assert drafted == accepted > 0


# --- what it costs ----------------------------------------------------------------------------------------------------


def test_a_draft_model_that_is_no_faster_is_not_asked() -> None:
    asked = request("some words", max_tokens=20, logprobs=0)
    decoder = Prompter([told(asked)])
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
    pipeline = drafting(Prompter([told(asked)]), speculation=None)

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
