"""Through the whole engine, on the int4 model: a request's log-probabilities are the same bits whatever else runs.

Thirty requests of mixed lengths and settings are run alone, then among sixteen others, under another token budget, each
put back in the middle of its output, and on prefix hits.
"""

from random import Random

import pytest
from msgspec.structs import replace

from models.decoder.loading import LoadedModel, load_decoder
from models.files.source import resolve
from pipelines.base import Ticket
from pipelines.messages.frames import Done, Event
from pipelines.messages.text import Delta, Sampling, StringPrompt, TextOptions, TextRequest, TokenLogprob
from pipelines.text.pipeline import TextPipeline
from pipelines.text.step_cost import StepCost

pytestmark = pytest.mark.requires_weights

TOKENS = 8
SENTENCE = "the keeper of a lighthouse counted seven ships before storm came in from north and wrote their names down"


def some_text(words: int, seed: int) -> str:
    return " ".join(Random(seed).choices(SENTENCE.split(), k=words))


REQUESTS = [
    TextRequest(
        prompts=[StringPrompt(some_text(5 + 3 * number, seed=number))],  # the longest is two tiles
        sampling=Sampling(
            temperature=0.0 if number % 3 else 0.9,
            top_p=1.0 if number % 2 else 0.95,
            seed=number,
            frequency_penalty=0.0 if number % 5 else 0.5,
            max_tokens=TOKENS,
            logprobs=3,
            ignore_eos=True,
        ),
    )
    for number in range(30)
]
OTHERS = [
    TextRequest(
        prompts=[StringPrompt(some_text(10 + 5 * number, seed=100 + number))],
        sampling=Sampling(seed=1, max_tokens=4 + number % 8, ignore_eos=True),
    )
    for number in range(16)
]

Outcome = list[TokenLogprob]


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load_decoder(resolve("embedded:smollm2-135m-instruct"), device="cpu", threads=2)


def create(model: LoadedModel, **options: int | str) -> TextPipeline:
    return TextPipeline(model, TextOptions(**{"kv_cache_tokens": 8192, "max_num_seqs": 16, **options}))


def submit(pipeline: TextPipeline, id: str, request: TextRequest) -> None:
    pipeline.admit(pipeline.prepare(Ticket(id, "interactive", 0.0), request))


def run(pipeline: TextPipeline) -> tuple[dict[str, Outcome], dict[str, Done]]:
    events: list[Event] = []
    while pipeline.busy:
        events.extend(pipeline.step().events)
    pipeline.stats()
    logprobs: dict[str, Outcome] = {}
    for event in events:
        if isinstance(event, Delta):
            logprobs.setdefault(event.id, []).extend(event.logprobs)
    return logprobs, {event.id: event for event in events if isinstance(event, Done)}


def run_all(pipeline: TextPipeline) -> list[Outcome]:
    """All thirty together."""
    for number, request in enumerate(REQUESTS):
        submit(pipeline, str(number), request)
    logprobs, _ = run(pipeline)
    return [logprobs[str(number)] for number in range(len(REQUESTS))]


@pytest.fixture(scope="module")
def alone(model: LoadedModel) -> list[Outcome]:
    pipeline = create(model, prefix_cache=False)
    outcomes: list[Outcome] = []
    for request in REQUESTS:
        submit(pipeline, "r", request)
        outcomes.append(run(pipeline)[0]["r"])
    assert all(len(outcome) == TOKENS for outcome in outcomes)
    assert len({tuple(entry.logprob for entry in outcome) for outcome in outcomes}) == len(REQUESTS)
    return outcomes


def test_among_sixteen_others(model, alone):
    pipeline = create(model, max_num_seqs=46)
    for number, other in enumerate(OTHERS):
        submit(pipeline, f"other {number}", other)
    assert run_all(pipeline) == alone


def test_under_another_token_budget(model, alone):
    assert run_all(create(model, max_num_batched_tokens=70, max_num_seqs=6)) == alone


def test_preempted(model, alone):
    pipeline = create(model)
    scheduler = pipeline._scheduler
    logprobs: list[Outcome] = [[] for _ in REQUESTS]
    for number, request in enumerate(REQUESTS):
        submit(pipeline, str(number), request)
    while pipeline.busy:
        for event in pipeline.step().events:
            if isinstance(event, Delta):
                logprobs[int(event.id)] += event.logprobs
        for sequence in list(scheduler._running):
            if sequence.num_output >= 2 + sequence.order % 5 and not sequence.preemptions:
                scheduler._preempt(sequence)
    assert logprobs == alone
    assert scheduler.num_preemptions == len(REQUESTS)


def test_with_drafts(model, alone):
    """Of what came before: the sentences are made of few words, so there is always something to propose."""
    pipeline = create(model, speculation="ngram", max_num_batched_tokens=1024, max_num_seqs=8)
    pipeline._speculation._cost = StepCost(1.0, 0.0)  # rows cost nothing: all that is proposed is verified
    assert run_all(pipeline) == alone
    counters = pipeline.stats().counters
    assert counters["drafted_tokens:ngram"] > counters["accepted_tokens:ngram"] > 10


def test_on_a_prefix_hit(model, alone):
    pipeline = create(model)
    for request in REQUESTS:
        submit(pipeline, "first", replace(request, sampling=Sampling(max_tokens=1)))
    run(pipeline)
    for number, request in enumerate(REQUESTS):
        submit(pipeline, str(number), request)
    logprobs, done = run(pipeline)
    assert [logprobs[str(number)] for number in range(len(REQUESTS))] == alone
    usages = [done[str(number)].usage for number in range(len(REQUESTS))]
    tile = model.decoder.tile
    assert [usage.cached_tokens for usage in usages] == [(usage.prompt_tokens - 1) // tile * tile for usage in usages]
    assert sum(usage.cached_tokens > 0 for usage in usages) > 8
