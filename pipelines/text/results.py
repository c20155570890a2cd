"""What a step has computed for each chunk of its plan."""

from collections.abc import Sequence as Rows
from dataclasses import dataclass

from torch import Tensor

from pipelines.text.sampler import Choice, RowLogprobs, sample, token_logprobs
from pipelines.text.scheduler import Plan


@dataclass(frozen=True, slots=True)
class Result:
    choice: Choice | None = None  # the token drawn, where the chunk draws one
    scores: Rows[RowLogprobs] = ()  # of the prompt's tokens from the chunk's second on, where the chunk scores them
    finite: bool = True  # False: the model broke on this sequence


_NOTHING = Result()
_BROKEN = Result(finite=False)


def read_logits(plan: Plan, logits: Tensor) -> list[Result]:
    """A result for each chunk, from `logits` [rows, vocab] in the plan's order. Changes nothing."""
    chunks = plan.chunks
    drawing: list[int] = []  # rows
    scores: list[Rows[RowLogprobs] | None] = []
    end = 0
    for chunk in chunks:
        start, end = end, end + chunk.logits
        if chunk.draws:
            drawing.append(end - 1)
        if not chunk.scores:
            scores.append(())
            continue
        sequence = chunk.sequence
        scored = sequence.tokens[chunk.start + 1 : chunk.start + chunk.length + 1]  # there is no output yet
        scores.append(token_logprobs(logits[start : start + len(scored)], scored, sequence.params.logprobs or 0))

    rows = logits if len(drawing) == end else logits[drawing]
    choices = iter(sample(rows, [chunk.sequence for chunk in chunks if chunk.draws]))
    results: list[Result] = []
    for chunk, own in zip(chunks, scores, strict=True):
        choice = next(choices) if chunk.draws else None
        if own is None or (chunk.draws and choice is None):
            results.append(_BROKEN)
        else:
            results.append(Result(choice, own) if choice or own else _NOTHING)
    return results
