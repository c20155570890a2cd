"""Drafts change how fast a request is answered, and nothing of what is said."""

import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from pipelines.base import Ticket
from pipelines.text.drafting import Drafting
from pipelines.text.drafts.ngram import SuffixIndex
from pipelines.text.output.choice_text import Output
from pipelines.text.plan import Chunk, Plan
from pipelines.text.results import read_logits
from pipelines.text.sample.rules import Rules
from pipelines.text.sample.sampling import SamplingParams
from pipelines.text.sequence import Group
from pipelines.text.sequence import Sequence as TextSequence
from pipelines.text.step_cost import StepCost
from tests.pipelines.text.fakes import create_pipeline, draft_freely, keep_too_much, only, request, run, submit

# --- what is proposed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "most", "expected"),
    [
        ([1, 2, 3, 4, 5, 9, 1, 2, 3, 4], 3, [5, 9, 1]),
        ([7, 1, 2, 8, 1, 2, 5, 5, 1, 2], 2, [5, 5]),  # the last time
        ([3, 1, 2, 8, 4, 1, 2, 9, 3, 1, 2], 1, [8]),  # the longer run, though it is older
        ([1, 2, 1, 2, 1, 2], 8, [1, 2]),  # as far as it goes
        ([1, 2, 3], 4, []),
        ([5, 1], 4, []),
        ([], 4, []),
    ],
)
def test_what_followed_the_same_run_of_tokens(tokens: list[int], most: int, expected: list[int]) -> None:
    assert SuffixIndex().propose(tokens, most) == expected


def test_an_index_that_grows_is_one_made_at_once() -> None:
    chance = random.Random(0)
    tokens = [chance.randrange(4) for _ in range(300)]
    growing = SuffixIndex()
    for end in range(1, len(tokens) + 1, 3):
        assert growing.propose(tokens[:end], 5) == SuffixIndex().propose(tokens[:end], 5)


# --- what is worth verifying ------------------------------------------------------------------------------------------


def test_rows_that_cost_as_much_as_steps_are_not_worth_it() -> None:
    drafting = Drafting("ngram", 4)
    assert drafting.length(4, StepCost(1.0, 0.1).threshold(1)) == 4
    assert drafting.length(4, StepCost(0.1, 1.0).threshold(1)) == 0
    assert drafting.length(4, StepCost(1.0, 0.1).threshold(16)) == 0  # many rows: the base is shared already
    assert drafting.length(4, StepCost(1.0, 0.0).threshold(8)) == 4
    assert drafting.length(4, StepCost(1.0, 0.0).threshold(9)) == 0
    assert drafting.length(2, 0.0) == 2
    assert drafting.length(0, 0.0) == 0


def test_trust_follows_what_was_right_and_comes_back_by_guesses_that_cost_nothing() -> None:
    drafting = Drafting("ngram", 4)
    for _ in range(20):
        length = drafting.length(4, 0.3)
        drafting.take([3, 4, 5, 6], length)
        if not length:
            break
        assert drafting.drafts == (3, 4, 5, 6)[:length]
        drafting.learn(1, 0, token=9)
    assert drafting.drafts == ()
    for _ in range(20):
        drafting.learn(0, 0, token=3)  # what it would have proposed
        length = drafting.length(4, 0.3)
        drafting.take([3, 4, 5, 6], length)
        if length:
            break
    assert drafting.drafts[:1] == (3,)


# --- what is said -----------------------------------------------------------------------------------------------------

SETTINGS = [
    {},
    {"temperature": 1.0, "seed": 7},
    {"temperature": 0.7, "seed": 3, "top_p": 0.9, "frequency_penalty": 1.0, "repetition_penalty": 1.3},
    {"temperature": 1.0, "seed": 5, "min_tokens": 4, "stop_token_ids": list(range(100))},
]


def seen(events: object) -> tuple[object, ...]:
    outcome = only(events)
    return outcome.text, outcome.logprobs, outcome.reason


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("right", [0.0, 0.5, 0.9, 1.0])
def test_drafts_of_any_quality_change_nothing(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, object], right: float
) -> None:
    prompts = [f"prompt {number} " + "abcd" * (number % 5) for number in range(10)]
    requests = [
        request(prompt, logprobs=2, max_tokens=5 + 3 * number, **settings) for number, prompt in enumerate(prompts)
    ]
    plain = []
    for each in requests:
        pipeline = create_pipeline()
        submit(pipeline, "alone", each)
        plain.append(run(pipeline)["alone"])

    chance = random.Random(1)
    told = [
        [*prompt.encode(), *(entry.id for entry in only(events).logprobs)]
        for prompt, events in zip(prompts, plain, strict=True)
    ]

    def propose(_: SuffixIndex, tokens: Sequence[int], most: int) -> list[int]:
        """What will be said, as far as the quality goes."""
        whole = next(each for each in told if each[: len(tokens)] == list(tokens) or tokens[:8] == each[:8])
        rest = whole[len(tokens) : len(tokens) + most]
        return [token if chance.random() < right else chance.randrange(256) for token in rest]

    monkeypatch.setattr(SuffixIndex, "propose", propose)
    pipeline = create_pipeline(speculation="ngram", max_draft=4, max_num_batched_tokens=400)
    draft_freely(pipeline)
    for number, each in enumerate(requests):
        submit(pipeline, str(number), each)
    together = run(pipeline)
    assert [seen(together[str(number)]) for number in range(len(requests))] == [seen(events) for events in plain]
    counters = pipeline.stats().counters
    accepted, drafted = counters["accepted_tokens:ngram"], counters["drafted_tokens:ngram"]
    assert accepted == drafted if right == 1 else accepted < drafted
    assert right < 0.5 or accepted > 10
    assert sum(value for name, value in counters.items() if name.startswith("accepted_at")) == accepted
    assert pipeline._blocks.num_used == 0


def test_a_request_may_ask_for_drafts_and_refuse_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SuffixIndex, "propose", lambda _self, _tokens, most: [1, 2, 3, 4][:most])

    def drafted(configured: str | None, asked: int | None) -> int:
        pipeline = create_pipeline(speculation=configured)
        draft_freely(pipeline)
        text = request("some words", max_tokens=12)
        submit(pipeline, "r", type(text)(prompts=text.prompts, sampling=text.sampling, max_draft=asked))
        (done,) = (event for event in run(pipeline)["r"] if hasattr(event, "usage"))
        return int(done.usage.drafted_tokens)

    assert drafted(None, None) == drafted("ngram", 0) == 0
    assert drafted("ngram", None) > 0
    assert drafted(None, 4) > 0


def statistic(settings: dict[str, float], draft: int) -> tuple[float, int]:
    """Chi-square, and its degrees of freedom, of 20,000 outputs of two tokens of which the first was drafted, against
    as many that were drawn one after the other."""
    vocab, number = 8, 20_000
    logits = torch.from_numpy(np.random.default_rng(0).standard_normal((2, vocab), np.float32))

    def outputs(drafts: tuple[int, ...], seeds: range) -> Counter[tuple[int, int | None]]:
        """The second token counts only behind the drafted one: there alone a step gives it."""
        found: Counter[tuple[int, int | None]] = Counter()
        for seed in seeds:
            params = SamplingParams(seed=seed, max_tokens=9, **settings)
            rules = Rules.of(params, [1, 2])
            sequence = TextSequence(Group(Ticket("r", "interactive", 0.0)), 0, [1, 2], params, Output(), rules=rules)
            tokens = step(Chunk(sequence, 1, 1 + len(drafts), draws=True, drafts=drafts), logits[: 1 + len(drafts)])
            if tokens == [draft]:
                sequence.append(draft)
                tokens += step(Chunk(sequence, 2, 1, draws=True), logits[1:])
            found[tokens[0], tokens[1] if len(tokens) == 2 else None] += 1
        return found

    drafted, plain = outputs((draft,), range(number)), outputs((), range(number, 2 * number))
    cells = drafted.keys() | plain.keys()
    found = sum((drafted[cell] - plain[cell]) ** 2 / (drafted[cell] + plain[cell]) for cell in cells)
    return found, len(cells) - 1


def step(chunk: Chunk, logits: torch.Tensor) -> list[int]:
    (result,) = read_logits(Plan((chunk,), ()), logits)
    return [choice.token for choice in result.choices]


def limit(freedom: int) -> float:
    """Above the 99.9th percentile of the distribution."""
    return freedom + 4 * (2 * freedom) ** 0.5 + 6


SAMPLED = [({"temperature": 1.0}, 0), ({"temperature": 1.2, "top_p": 0.98, "repetition_penalty": 1.5}, 0)]


@pytest.mark.parametrize(("settings", "draft"), SAMPLED)
def test_what_is_sampled_has_the_models_distribution(settings: dict[str, float], draft: int) -> None:
    found, freedom = statistic(settings, draft)
    assert freedom >= 7
    assert found < limit(freedom)


def test_a_verification_that_keeps_too_much_has_another(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_too_much(monkeypatch)
    found, freedom = statistic(*SAMPLED[0])
    assert found > 2 * limit(freedom)
