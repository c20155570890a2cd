"""What a step has computed for each chunk of its plan."""

from collections.abc import Iterator
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from itertools import islice, zip_longest

from models.decoder.logits import Logits
from pipelines.text.plan import Chunk, Plan
from pipelines.text.sample.sampler import Choice, RowLogprobs, Sampled, sample, token_logprobs
from pipelines.text.sample.sampling import SamplingParams, TokenCounts


@dataclass(frozen=True, slots=True)
class Result:
    choices: Rows[Choice] = ()  # where the chunk draws: the drafts that were right, and the token after them
    scores: Rows[RowLogprobs] = ()  # of the prompt's tokens from the chunk's second on, where the chunk scores them
    finite: bool = True  # False: the model broke on this sequence

    @property
    def accepted(self) -> int:
        """Drafts that were right."""
        return max(0, len(self.choices) - 1)


@dataclass(frozen=True, slots=True)
class _Ahead:
    """A sequence as it is if the drafts up to a row are right."""

    params: SamplingParams
    counts: TokenCounts | None
    num_output: int


_NOTHING = Result()
_BROKEN = Result(finite=False)


def read_logits(plan: Plan, logits: Logits) -> list[Result]:
    """A result for each chunk, from `logits` [rows, vocab] in the plan's order. Changes nothing."""
    chunks = plan.chunks
    drawing: list[int] = []  # rows
    drawn: list[Sampled] = []  # what each of them is sampled for
    scores: list[Rows[RowLogprobs] | None] = []
    end = 0
    for chunk in chunks:
        start, end = end, end + chunk.logits
        if chunk.draws:
            drawing.extend(range(end - 1 - len(chunk.drafts), end))
            drawn.extend(_sampled(chunk))
        if not chunk.scores:
            scores.append(())
            continue
        sequence = chunk.sequence
        scored = sequence.tokens[chunk.start + 1 : chunk.start + chunk.length + 1]  # there is no output yet
        scores.append(token_logprobs(logits[start : start + len(scored)], scored, sequence.params.logprobs or 0))

    rows = logits if len(drawing) == end else logits[drawing]
    choices = iter(sample(rows, drawn))
    results: list[Result] = []
    for chunk, own in zip(chunks, scores, strict=True):
        taken = _taken(chunk, list(islice(choices, 1 + len(chunk.drafts)))) if chunk.draws else ()
        if own is None or taken is None:
            results.append(_BROKEN)
        else:
            results.append(Result(taken, own) if taken or own else _NOTHING)
    return results


def _sampled(chunk: Chunk) -> Iterator[Sampled]:
    """The sequence at each row that draws."""
    sequence = chunk.sequence
    yield sequence
    counts = sequence.counts
    for ahead, token in enumerate(chunk.drafts, 1):
        if counts is not None:
            counts = counts.extended(token)
        yield _Ahead(sequence.params, counts, sequence.num_output + ahead)


def _taken(chunk: Chunk, choices: Rows[Choice | None]) -> list[Choice] | None:
    """Up to the first that is not what was drafted; None where a row that counts is not finite."""
    taken: list[Choice] = []
    for choice, draft in zip_longest(choices, chunk.drafts):
        if choice is None:
            return None
        taken.append(choice)
        if choice.token != draft:
            break
    return taken
