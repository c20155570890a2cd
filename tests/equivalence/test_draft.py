"""Through the whole engine, on the int4 model: greedy text with drafts is greedy text without, to the bit.

The draft model is the model's own first layers: often right, and often wrong.
"""

from random import Random

import pytest

from models.decoder.loading import LoadedModel, load_decoder
from models.files.source import resolve
from pipelines.base import Ticket
from pipelines.messages.frames import Event
from pipelines.messages.text import Delta, ProposerKind, Sampling, StringPrompt, TextOptions, TextRequest, TokenLogprob
from pipelines.text.pipeline import TextPipeline
from pipelines.text.step_cost import StepCost
from tests.truncated import truncate

pytestmark = pytest.mark.requires_weights

TOKENS, LAYERS, MOST = 6, 28, 3
SENTENCE = (
    "the keeper of a lighthouse counted seven ships before the storm came in and the keeper of a lighthouse slept"
)

Outcome = list[TokenLogprob]


def some_text(words: int, seed: int) -> str:
    return " ".join(Random(seed).choices(SENTENCE.split(), k=words))


def greedy(number: int, kind: ProposerKind | None) -> TextRequest:
    """One of fifty; without a kind, without drafts."""
    return TextRequest(
        prompts=[StringPrompt(some_text(4 + number, seed=number))],
        sampling=Sampling(temperature=0.0, max_tokens=TOKENS, logprobs=1, ignore_eos=True),
        proposer=kind,
        max_draft=MOST if kind else 0,
    )


def sampled(number: int) -> TextRequest:
    """A neighbour, with drafts of its own."""
    return TextRequest(
        prompts=[StringPrompt(some_text(10, seed=100 + number))],
        sampling=Sampling(temperature=1.0, top_p=0.95, seed=number, max_tokens=2 * TOKENS, logprobs=1, ignore_eos=True),
        proposer="draft" if number % 2 else "ngram",
        max_draft=MOST,
    )


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load_decoder(resolve("embedded:smollm2-135m-instruct"), device="cpu", threads=1, dense_prefill=False)


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    target = tmp_path_factory.mktemp("draft") / "draft.gguf"
    path = truncate(resolve("embedded:smollm2-135m-instruct"), target, LAYERS)
    return load_decoder(path, device="cpu", threads=1, dense_prefill=False)


def create(model: LoadedModel, draft: LoadedModel) -> TextPipeline:
    """Rows and proposals cost nothing: all that is proposed is verified."""
    pipeline = TextPipeline(model, TextOptions(kv_cache_tokens=4096, max_num_seqs=8, prefix_cache=False), draft)
    pipeline._speculation._cost = StepCost(1.0, 0.0)
    pipeline._speculation._proposers["draft"]._cost = StepCost(0.0, 0.0)
    return pipeline


def submit(pipeline: TextPipeline, id: str, request: TextRequest) -> None:
    pipeline.admit(pipeline.prepare(Ticket(id, "interactive", 0.0), request))


def run(pipeline: TextPipeline) -> dict[str, Outcome]:
    events: list[Event] = []
    while pipeline.busy:
        events.extend(pipeline.step().events)
    assert pipeline.stats().gauges["draft_kv_blocks_used"] == 0
    outcomes: dict[str, Outcome] = {}
    for event in events:
        if isinstance(event, Delta):
            outcomes.setdefault(event.id, []).extend(event.logprobs)
    return outcomes


def alone(pipeline: TextPipeline, kind: ProposerKind | None) -> list[Outcome]:
    """Each of the fifty by itself."""
    outcomes: list[Outcome] = []
    for number in range(50):
        submit(pipeline, "r", greedy(number, kind))
        outcomes.append(run(pipeline)["r"])
    return outcomes


@pytest.fixture(scope="module")
def plain(model: LoadedModel, draft: LoadedModel) -> list[Outcome]:
    outcomes = alone(create(model, draft), None)
    assert len({tuple(entry.logprob for entry in outcome) for outcome in outcomes}) == 50
    return outcomes


def assert_tried(pipeline: TextPipeline, kind: ProposerKind) -> None:
    """Of what was drafted, some was right and some was wrong."""
    counters = pipeline.stats().counters
    assert counters[f"drafted_tokens:{kind}"] > counters[f"accepted_tokens:{kind}"] > 10


@pytest.mark.parametrize("kind", ["ngram", "draft"])
def test_alone(model: LoadedModel, draft: LoadedModel, plain: list[Outcome], kind: ProposerKind) -> None:
    pipeline = create(model, draft)
    assert alone(pipeline, kind) == plain
    assert_tried(pipeline, kind)


def test_among_sampled_neighbours(model: LoadedModel, draft: LoadedModel, plain: list[Outcome]) -> None:
    neighbours: dict[ProposerKind, list[Outcome]] = {}
    kinds: tuple[ProposerKind, ProposerKind] = ("ngram", "draft")
    for kind in kinds:
        pipeline = create(model, draft)
        for number in range(50):
            submit(pipeline, f"greedy {number}", greedy(number, kind))
            if number % 5 == 0:
                submit(pipeline, f"sampled {number}", sampled(number))
        outcomes = run(pipeline)
        assert [outcomes[f"greedy {number}"] for number in range(50)] == plain
        assert_tried(pipeline, kind)
        neighbours[kind] = [outcomes[f"sampled {number}"] for number in range(0, 50, 5)]
    assert neighbours["ngram"] == neighbours["draft"]
