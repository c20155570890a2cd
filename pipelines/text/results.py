"""What a step has computed for each chunk of its plan."""

from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from typing import Literal

from models.decoder.logits import Logits
from pipelines.text.plan import Chunk, Plan
from pipelines.text.sample.rules import Rules
from pipelines.text.sample.sampler import Choice, RowLogprobs, StepLogits, sample, token_logprobs
from pipelines.text.sample.sampling import SamplingParams

# Why a chunk has no result: the model broke on this sequence, or its rules ban every token.
Failure = Literal["not finite", "all banned"]


@dataclass(frozen=True, slots=True)
class Result:
    choices: Rows[Choice] = ()  # where the chunk draws: the drafts that were right, and the token after them
    scores: Rows[RowLogprobs] = ()  # of the prompt's tokens from the chunk's second on, where the chunk scores them
    failure: Failure | None = None
    reason: str = ""  # more of why all are banned
    complete: bool = False  # no token may come behind the choices, and none has to

    @property
    def accepted(self) -> int:
        """Drafts that were right."""
        return max(0, len(self.choices) - (not self.complete))


@dataclass(slots=True)
class Draw:
    """A sequence at the next row that it draws from: as it is if the drafts before the row are right. They are, since
    no row is looked at before. Implements `Sampled`."""

    chunk: Chunk
    row: int
    rules: Rules
    taken: list[Choice] = field(default_factory=list)
    failed: bool = False

    @property
    def params(self) -> SamplingParams:
        return self.chunk.sequence.params

    @property
    def num_output(self) -> int:
        return self.chunk.sequence.num_output + len(self.taken)

    def take(self, choice: Choice | None) -> bool:
        """What was drawn. Whether to go on: it is what was drafted, and does not end the text."""
        if choice is None:
            self.failed = True
            return False
        ahead, token = len(self.taken), choice.token
        self.taken.append(choice)
        ends = self.params.ends(token) and self.rules.may_end
        if ends or ahead >= len(self.chunk.drafts) or token != self.chunk.drafts[ahead]:
            return False
        self.row += 1
        if self.rules:
            if ahead == 0:
                self.rules = self.rules.fork()
            self.rules.accept(token)
        return True


_NOTHING = Result()


def read_logits(plan: Plan, logits: Logits) -> list[Result]:
    """A result for each chunk, from `logits` [rows, vocab] in the plan's order. Changes nothing."""
    chunks = plan.chunks
    step = StepLogits(logits)
    draws: list[Draw | None] = []
    scores: list[Rows[RowLogprobs] | None] = []
    end = 0
    for chunk in chunks:
        start, end = end, end + chunk.logits
        sequence = chunk.sequence
        draws.append(Draw(chunk, end - 1 - len(chunk.drafts), sequence.rules) if chunk.draws else None)
        if chunk.scores:
            scored = sequence.tokens[chunk.start + 1 : chunk.start + chunk.length + 1]  # there is no output yet
            scores.append(token_logprobs(step, start, scored, sequence.params.logprobs or 0))
        else:
            scores.append(())
    _draw([draw for draw in draws if draw is not None], step)
    return [_result(draw, own, step) for draw, own in zip(draws, scores, strict=True)]


def _draw(draws: Rows[Draw], logits: StepLogits) -> None:
    """Row after row, those of all sequences together."""
    while draws:
        choices = sample(logits, [draw.row for draw in draws], draws)
        draws = [draw for draw, choice in zip(draws, choices, strict=True) if draw.take(choice)]


def _result(draw: Draw | None, scores: Rows[RowLogprobs] | None, logits: StepLogits) -> Result:
    if scores is None:
        return Result(failure="not finite")
    if draw is None:
        return Result(scores=scores) if scores else _NOTHING
    if draw.failed:
        if not logits.finite(draw.row):
            return Result(failure="not finite")
        if draw.rules.complete:
            return Result(draw.taken, scores, complete=True)
        return Result(failure="all banned", reason=draw.rules.reason)
    return Result(draw.taken, scores)
