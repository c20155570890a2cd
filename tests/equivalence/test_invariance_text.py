"""Through the whole engine, on the int4 model: a request's log-probabilities are the same bits whatever else runs.

Thirty requests of mixed lengths and settings are run alone, then among sixteen others, under other token budgets, out of
a cache so small that they are preempted, and on prefix hits.
"""

import pytest

from models.loading import LoadedModel, load_decoder
from models.source import resolve
from pipelines.base import Ticket
from pipelines.messages import Delta, Done, Event, Sampling, StringPrompt, TextOptions, TextRequest, TokenLogprob
from pipelines.text.pipeline import TextPipeline

pytestmark = pytest.mark.requires_weights

TOKENS = 10
SENTENCE = "The lighthouse keeper counted seven ships before the storm came in from the north. "
REQUESTS = [
    TextRequest(
        prompts=[StringPrompt(f"{number}. " + SENTENCE * (1 + number % 10) + "Then")],
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
        prompts=[StringPrompt(SENTENCE[number:] * (1 + number % 4))], sampling=Sampling(seed=1, max_tokens=5 + number)
    )
    for number in range(16)
]

Outcome = list[TokenLogprob]


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load_decoder(resolve("embedded:smollm2-135m"), device="cpu", threads=2)


def create(model: LoadedModel, **options: int) -> TextPipeline:
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
    assert len({tuple(entry.id for entry in outcome) for outcome in outcomes}) > 20
    return outcomes


def test_among_sixteen_others(model, alone):
    pipeline = create(model, max_num_seqs=46)
    for number, other in enumerate(OTHERS):
        submit(pipeline, f"other {number}", other)
    assert run_all(pipeline) == alone


@pytest.mark.parametrize(("budget", "sequences"), [(68, 4), (200, 8)])
def test_under_another_token_budget(model, alone, budget, sequences):
    assert run_all(create(model, max_num_batched_tokens=budget, max_num_seqs=sequences)) == alone


def test_preempted(model, alone):
    pipeline = create(model, kv_cache_tokens=1280)
    assert run_all(pipeline) == alone
    assert pipeline.stats().counters["preemptions"] > 3


def test_on_a_prefix_hit(model, alone):
    pipeline = create(model)
    run_all(pipeline)
    for number, request in enumerate(REQUESTS):
        submit(pipeline, str(number), request)
    logprobs, done = run(pipeline)
    assert [logprobs[str(number)] for number in range(len(REQUESTS))] == alone
    hits = [done[str(number)].usage.cached_tokens for number in range(len(REQUESTS))]
    assert sum(hit > 0 for hit in hits) > 20
