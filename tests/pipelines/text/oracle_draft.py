"""A draft model that knows what will be said, and pipelines that draft with it."""

from collections.abc import Sequence

import numpy as np

from pipelines.messages.text import TextRequest, TokenPrompt
from pipelines.text.drafts.draft_model import DraftModel
from pipelines.text.pipeline import TextPipeline
from tests.pipelines.text.fakes import (
    VOCAB,
    FakeDecoder,
    create_pipeline,
    draft_freely,
    generate,
    only,
)

MOST = 4  # tokens a draft


class OracleDraft(FakeDecoder):
    """Knows what will be said, and is wrong at every `wrong`-th position of a text; 0: never. It goes by what its cache
    holds: where that isn't the text so far, what it says is wrong too."""

    def __init__(self, texts: Sequence[Sequence[int]], wrong: int = 0, **options: object) -> None:
        super().__init__(**options)
        self.texts = [list(text) for text in texts]
        self.wrong = wrong

    def logits(self, seen: np.ndarray) -> np.ndarray:
        if seen[-1, 0] == self.poison:
            return np.full(VOCAB, np.nan, np.float32)
        said = seen[:, 0].tolist()
        text = next((text for text in self.texts if len(text) > len(said) and text[: len(said)] == said), None)
        token = 200 if text is None else text[len(said)]
        logits = np.zeros(VOCAB, np.float32)
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
