"""Drafts: tokens that a sequence may come to say, verified together in one step.

A verified row draws its token as plain decoding would, from the same distribution with the same random number; drafts
that it agrees with have saved their steps, the first one that it disagrees with is replaced by what it drew. So a
request's output is the same, to the bit, with drafts and without them. For proposals that are certain, as these are,
this is rejection sampling (https://arxiv.org/abs/2302.01318): a token is kept with its probability, and what replaces
it has the distribution that is left.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

SIZES = (4, 3, 2)  # tokens of the runs that are looked up, the longest first
OPTIMISM = 0.6  # what an index is trusted at first
MEMORY = 0.15  # the weight of the newest trial
MARGIN = 1.25  # a row costs more where it is the first of a tile of them
MOST_STREAMS = 8  # beside more sequences than that, a step's time goes into its rows, and no row is cheap


class SuffixIndex:
    """Where each short run of a sequence's tokens was last followed by something: prompt lookup decoding
    (https://github.com/apoorvumang/prompt-lookup-decoding)."""

    def __init__(self) -> None:
        self._follows: tuple[dict[tuple[int, ...], int], ...] = tuple({} for _ in SIZES)
        self._indexed = 0  # tokens whose place as a follower is in the index

    def propose(self, tokens: Sequence[int], most: int) -> list[int]:
        """Up to `most` tokens that followed the longest run that `tokens` ends with. `tokens` only ever grows."""
        for end in range(max(1, self._indexed), len(tokens)):
            for size, follows in zip(SIZES, self._follows, strict=True):
                if size <= end:
                    follows[tuple(tokens[end - size : end])] = end
        self._indexed = len(tokens)
        for size, follows in zip(SIZES, self._follows, strict=True):
            if size <= len(tokens) and (place := follows.get(tuple(tokens[-size:]))) is not None:
                return list(tokens[place : place + most])
        return []


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a decode step: `base` and `row` for each row, as measured at the start."""

    base: float
    row: float

    @staticmethod
    def of(one: float, several: float, rows: int) -> "StepCost":
        """From the times of a step of one row and of one of `rows`."""
        row = max(0.0, (several - one) / (rows - 1))
        return StepCost(max(0.0, one - row), row)

    def threshold(self, rows: int) -> float:
        """The probability of being accepted from which on one more row pays, beside `rows` that each give a token.

        It has to give clearly more tokens a second than the step does without it: what it costs is an estimate.
        """
        if rows > MOST_STREAMS:
            return inf
        plain = self.base + rows * self.row
        return MARGIN * rows * self.row / plain if plain > 0 else 0.0


@dataclass(slots=True)
class Drafting:
    """The drafts of one sequence."""

    most: int  # tokens a draft
    index: SuffixIndex = field(default_factory=SuffixIndex)
    trust: float = OPTIMISM  # that a proposed token is right, where the one before it was
    guess: int | None = None  # a proposal that was not worth a row; seeing whether it was right costs nothing

    def draft(self, tokens: Sequence[int], room: int, threshold: float) -> tuple[int, ...]:
        """At most `room` tokens, as many as are worth their rows."""
        proposed = self.index.propose(tokens, max(1, min(self.most, room)))
        worth = 0
        chance = self.trust
        while worth < min(len(proposed), room) and chance > threshold:
            worth += 1
            chance *= self.trust
        self.guess = proposed[0] if proposed and not worth else None
        return tuple(proposed[:worth])

    def learn(self, drafted: int, accepted: int, token: int) -> None:
        """How a draft fared; `token`: the first that the step gave."""
        for right in [True] * accepted + [False] * (accepted < drafted):
            self.trust += MEMORY * (right - self.trust)
        if self.guess is not None:
            self.trust += MEMORY * ((token == self.guess) - self.trust)
            self.guess = None


@dataclass(slots=True)
class DraftTotals:
    """Over this worker's life."""

    drafts: int = 0
    drafted: int = 0
    accepted: Counter[int] = field(default_factory=Counter)  # by position in the draft, from 0

    def add(self, drafted: int, accepted: int) -> None:
        self.drafts += 1
        self.drafted += drafted
        self.accepted.update(range(accepted))

    def counters(self) -> dict[str, float]:
        """By their names in the metrics' definitions; empty before the first draft."""
        if not self.drafts:
            return {}
        totals = {"drafts": self.drafts, "drafted_tokens": self.drafted, "accepted_tokens": self.accepted.total()}
        return {**totals, **{f"accepted_at:{position}": count for position, count in self.accepted.items()}}
