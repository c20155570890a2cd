"""What a logits rule may rely on, shown with one that depends on every token before: it holds whatever else runs, and
nobody beside it can tell."""

import random
from collections.abc import Sequence
from typing import ClassVar, Self

import numpy as np
import pytest

from pipelines.base import StepFailed
from pipelines.messages.frames import Event, Failed
from pipelines.messages.text import TextRequest, TokenLogprob
from pipelines.text.drafts.ngram import SuffixIndex
from pipelines.text.pipeline import TextPipeline
from pipelines.text.sample import rules
from pipelines.text.sample.logits_rule import LogitsRule
from pipelines.text.sample.sampling import Floats, SamplingParams
from tests.pipelines.text.fakes import (
    BLOCK,
    EOS,
    VOCAB,
    FakeDecoder,
    choices,
    create_pipeline,
    draft_freely,
    generate,
    only,
    request,
    run,
    submit,
)

MARK = "#"  # prompts that begin with it have the rule
IDS = np.arange(VOCAB)
SETTINGS = [
    {},
    {"temperature": 1.0, "seed": 7},
    {"temperature": 1.2, "seed": 3, "top_k": 40, "top_p": 0.9},
    {"temperature": 0.8, "seed": 5, "frequency_penalty": 1.0, "logit_bias": {100: 3.0, 101: -3.0}},
    {"temperature": 1.0, "seed": 1, "min_tokens": 3, "stop_token_ids": list(range(40, 60))},
]


class Follows(LogitsRule):
    """The remainder of a token by 3 is that of the sum of all before it, and no token comes twice in a row."""

    together: ClassVar[list[int]] = []  # how many rules were asked to compute ahead

    def __init__(self, params: SamplingParams, total: int, last: int) -> None:
        self.params, self.total, self.last = params, total, last
        self.mask: np.ndarray | None = None
        self.ended = False

    @classmethod
    def of(cls, params: SamplingParams, prompt: Sequence[int]) -> Self | None:
        return cls(params, sum(prompt), prompt[-1]) if prompt[0] == ord(MARK) else None

    def allowed(self) -> np.ndarray:
        return (self.total % 3 == IDS % 3) & (self.last != IDS)

    @classmethod
    def compute_ahead(cls, rules: Sequence[Self]) -> None:
        cls.together.append(len(rules))
        for rule in rules:
            rule.mask = rule.allowed()

    def apply(self, row: Floats) -> None:
        assert not self.ended, "nothing comes behind an end"
        assert np.isfinite(row.max())
        row[~(self.allowed() if self.mask is None else self.mask)] = -np.inf

    def accept(self, token: int) -> None:
        assert self.allowed()[token], "only what was drawn is accepted"
        self.total, self.last, self.mask = self.total + token, token, None
        self.ended = self.params.ends(token)

    def fork(self) -> Self:
        return type(self)(self.params, self.total, self.last)


@pytest.fixture
def ruled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "KINDS", (*rules.KINDS, Follows))
    monkeypatch.setattr(Follows, "together", [])


REQUESTS = [(f"{MARK if number % 2 else ''}prompt {number} " + "abcd" * (number % 5)) for number in range(8)]

Seen = dict[int, tuple[str, list[TokenLogprob], str]]


def asked(prompt: str, **settings: object) -> TextRequest:
    return request(prompt, **{"logprobs": 4, "max_tokens": 20, "n": 3, **settings})


def seen(events: list[Event]) -> Seen:
    return {index: (choice.text, choice.logprobs, choice.reason) for index, choice in choices(events).items()}


def follows(prompt: str, said: list[TokenLogprob]) -> bool:
    tokens = [*prompt.encode(), *(entry.id for entry in said)]
    output = range(len(prompt.encode()), len(tokens))
    return all(tokens[at] % 3 == sum(tokens[:at]) % 3 and tokens[at] != tokens[at - 1] for at in output)


def run_all(pipeline: TextPipeline, settings: dict[str, object], *, put_back: bool = False) -> list[Seen]:
    """`put_back`: each choice once, in the middle of its output."""
    events: dict[str, list[Event]] = {}
    for number, prompt in enumerate(REQUESTS):
        submit(pipeline, str(number), asked(prompt, **settings))
    while pipeline.busy:
        for event in pipeline.step().events:
            events.setdefault(event.id, []).append(event)
        for sequence in list(pipeline._scheduler._running) if put_back else ():
            if sequence.num_output >= 2 + sequence.order % 3 and not sequence.preemptions:
                pipeline._scheduler._preempt(sequence)
    pipeline.stats()
    return [seen(events[str(number)]) for number in range(len(REQUESTS))]


def run_alone(settings: dict[str, object]) -> list[Seen]:
    return [seen(generate(create_pipeline(), asked(prompt, **settings))) for prompt in REQUESTS]


def propose_what_comes(monkeypatch: pytest.MonkeyPatch, outcomes: list[Seen], right: float = 0.8) -> None:
    """The n-gram proposer knows what will be said; where it is wrong, by any token, the rule may ban it."""
    chance = random.Random(1)
    told = [
        [*prompt.encode(), *(entry.id for entry in logprobs)]
        for prompt, outcome in zip(REQUESTS, outcomes, strict=True)
        for _, logprobs, _ in outcome.values()
    ]

    def propose(_: SuffixIndex, tokens: Sequence[int], most: int) -> list[int]:
        whole = next((each for each in told if each[: len(tokens)] == list(tokens)), [])
        rest = whole[len(tokens) : len(tokens) + most]
        return [token if chance.random() < right else chance.randrange(VOCAB) for token in rest]

    monkeypatch.setattr(SuffixIndex, "propose", propose)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize(("drafts", "put_back"), [(True, False), (False, True), (True, True)])
def test_a_rule_holds_and_nobody_beside_it_can_tell(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, object], drafts: bool, put_back: bool
) -> None:
    without = run_alone(settings)
    with monkeypatch.context() as patch:
        patch.setattr(rules, "KINDS", (*rules.KINDS, Follows))
        alone = run_alone(settings)
        pipeline = create_pipeline(
            speculation="ngram" if drafts else None, max_num_batched_tokens=400, kv_cache_tokens=256 * BLOCK
        )
        propose_what_comes(patch, alone)
        draft_freely(pipeline)
        assert run_all(pipeline, settings, put_back=put_back) == alone
    for prompt, outcome, plain in zip(REQUESTS, alone, without, strict=True):
        ruled = prompt.startswith(MARK)
        assert (outcome != plain) == ruled
        assert not ruled or all(follows(prompt, logprobs) for _, logprobs, _ in outcome.values())
    counters = pipeline.stats().counters
    assert not put_back or counters["preemptions"] > len(REQUESTS)
    assert not drafts or 20 < counters["accepted_tokens:ngram"] < counters["drafted_tokens:ngram"]


def test_log_probabilities_are_the_models_own(ruled: None) -> None:
    entries = only(generate(create_pipeline(), asked(REQUESTS[1], n=1, logprobs=20))).logprobs
    for entry in entries:
        top = {each.id: each.logprob for each in entry.top}
        assert {id % 3 for id in top} == {0, 1, 2}  # what the rule bans is among the likely ones
        assert top.get(entry.id, entry.logprob) == entry.logprob


def test_choices_go_their_own_ways(ruled: None) -> None:
    outcome = choices(generate(create_pipeline(), asked(REQUESTS[1], temperature=1.0, seed=4)))
    assert len({choice.text for choice in outcome.values()}) == 3
    for index, choice in outcome.items():
        single = only(generate(create_pipeline(), asked(REQUESTS[1], n=1, temperature=1.0, seed=4 + index)))
        assert (choice.text, choice.logprobs) == (single.text, single.logprobs)


def test_what_all_rows_need_is_computed_at_once_and_is_what_each_computes(
    ruled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = run_all(create_pipeline(max_num_seqs=12, prefix_cache=False), {"n": 1})
    assert max(Follows.together) == len(REQUESTS) // 2
    monkeypatch.setattr(Follows, "compute_ahead", lambda _rules: None)
    assert run_all(create_pipeline(), {"n": 1}) == at_once


def test_nothing_is_seen_behind_an_end(ruled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts go on behind EOS, as prompts of chats do."""
    plain = generate(create_pipeline(), asked(REQUESTS[1], n=1, ignore_eos=False, logit_bias={EOS: 9.0}))
    ended = only(plain)
    assert ended.reason == "stop"
    told = [*REQUESTS[1].encode(), *(entry.id for entry in ended.logprobs), 3, 4, 5, 6]
    assert told[-5] == EOS
    monkeypatch.setattr(SuffixIndex, "propose", lambda _self, tokens, most: told[len(tokens) :][:most])
    pipeline = create_pipeline(speculation="ngram", max_draft=8)
    draft_freely(pipeline)
    events = generate(pipeline, asked(REQUESTS[1], n=1, ignore_eos=False, logit_bias={EOS: 9.0}))
    assert seen(events) == seen(plain)
    assert events[-1].usage.accepted_tokens <= events[-1].usage.completion_tokens


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 5}, {"logprobs": None}])
def test_a_request_whose_rules_ban_every_token_fails_alone(settings: dict[str, object]) -> None:
    every = {"min_tokens": 2, "stop_token_ids": list(range(VOCAB))}
    pipeline = create_pipeline()
    submit(pipeline, "good", asked(REQUESTS[0], n=1))
    submit(pipeline, "bad", asked(REQUESTS[2], **settings, **every))
    events = run(pipeline)
    (failed,) = events["bad"]
    assert isinstance(failed, Failed)
    assert failed.code == "invalid_request"
    assert seen(events["good"]) == seen(generate(create_pipeline(), asked(REQUESTS[0], n=1)))


def test_a_rule_that_breaks_fails_its_request_alone(ruled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Follows, "apply", lambda _self, _row: 1 / 0)
    pipeline = create_pipeline()
    for id, prompt in (("good", REQUESTS[0]), ("bad", REQUESTS[1])):
        submit(pipeline, id, asked(prompt, n=1))
    with pytest.raises(StepFailed) as failure:
        pipeline.step()
    assert set(failure.value.request_ids) == {"good", "bad"}
    first = pipeline.step(only="good").events
    with pytest.raises(StepFailed) as again:
        pipeline.step(only="bad")
    assert again.value.request_ids == ("bad",)
    pipeline.abort("bad")
    events = [*first, *run(pipeline)["good"]]
    assert seen(events) == seen(generate(create_pipeline(), asked(REQUESTS[0], n=1)))


def test_a_step_that_is_run_again_gives_the_same(ruled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = seen(generate(create_pipeline(), asked(REQUESTS[1], n=1, temperature=1.0, seed=2)))
    decoder = FakeDecoder()
    pipeline = create_pipeline(decoder)
    submit(pipeline, "r", asked(REQUESTS[1], n=1, temperature=1.0, seed=2))
    events: list[Event] = []
    apply = Follows.apply
    turns = 0

    def breaks_after(self: Follows, row: Floats) -> None:
        apply(self, row)
        nonlocal turns
        turns += 1
        if turns % 2:
            raise RuntimeError("after it was applied")

    monkeypatch.setattr(Follows, "apply", breaks_after)
    while pipeline.busy:
        try:
            events += pipeline.step().events
        except StepFailed:
            events += pipeline.step(only="r").events
    assert seen(events) == expected
