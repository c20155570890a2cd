"""A draft model reads what a sequence says, proposes what comes next, and takes back what was not said."""

import pytest

from pipelines.messages.text import TokenPrompt
from pipelines.text.drafts.draft_model import PATIENCE, SHORT
from pipelines.text.step_cost import StepCost
from tests.pipelines.text.fakes import (
    EOS,
    draft_freely,
    generate,
    request,
    run,
    submit,
)
from tests.pipelines.text.oracle_draft import MOST, OracleDraft, drafting, drafts, model_of, plain, seen, told

SETTINGS: list[dict[str, object]] = [
    {},
    {"temperature": 1.0, "seed": 7},
    {"temperature": 0.7, "seed": 3, "top_p": 0.9, "frequency_penalty": 1.0, "repetition_penalty": 1.3},
    {"temperature": 1.0, "seed": 5, "min_tokens": 4, "stop_token_ids": list(range(100))},
]


# --- what is said -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("wrong", [0, 1, 3])
def test_drafts_of_any_quality_change_nothing(settings: dict[str, object], wrong: int) -> None:
    prompts = [f"prompt {number} " + "abcd" * number for number in range(6)]
    requests = [
        request(prompt, logprobs=2, max_tokens=5 + 3 * number, **settings) for number, prompt in enumerate(prompts)
    ]
    alone = [plain(each) for each in requests]
    pipeline = drafting(OracleDraft([told(each, said) for each, said in zip(requests, alone, strict=True)], wrong))
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
    pipeline = drafting(OracleDraft([text], wrong))
    assert told(asked, seen(generate(pipeline, asked))) == text
    assert drafts(pipeline) == tuple(expected)


def test_what_was_not_said_is_taken_back_after_a_pause_too() -> None:
    asked = request(TokenPrompt([1, 2, 3]), max_tokens=30, logprobs=0)
    decoder = OracleDraft([told(asked)], wrong=1)
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
    decoder = OracleDraft([told(each) for each in requests])
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
        decoder = OracleDraft([[*told(asked)[:13], end, 1, 2, 3]])
        pipeline = drafting(decoder, max_draft=8)
        submit(pipeline, "r", asked)
        pipeline.step()
        pipeline.step()
        assert decoder.batches("decode") == [[11], [1], [1]]  # the third says the end


# --- what it reads ----------------------------------------------------------------------------------------------------


def test_a_long_prompt_is_read_in_parts_while_the_text_goes_on() -> None:
    asked = request(TokenPrompt([5 * id % 251 for id in range(90)]), max_tokens=30, logprobs=0)
    decoder = OracleDraft([told(asked)])
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
        decoder = OracleDraft([])
        pipeline = drafting(decoder)
        generate(pipeline, asked)
        assert bool(decoder.batches("prefill")) == reads


def test_a_prompt_that_was_read_before_is_not_read_again() -> None:
    prompt = [7 * id % 251 for id in range(70)]
    asked = request(TokenPrompt(prompt), max_tokens=30, logprobs=0)
    decoder = OracleDraft([told(asked)])
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
    decoder = OracleDraft([[*told(asked)[:5], 263, 263]])
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
    decoder = OracleDraft([told(asked)], context=20)
    pipeline = drafting(decoder)
    assert seen(generate(pipeline, asked)) == plain(asked)
    assert max(int(batch.positions.max()) for batch in decoder.forwards) < 20
    assert drafts(pipeline)[1] > 8
