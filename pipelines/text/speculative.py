"""Drafts: tokens that a sequence may come to say, verified together in one step.

A verified row draws its token as plain decoding would, from the same distribution with the same random number; drafts
that it agrees with have saved their steps, the first one that it disagrees with is replaced by what it drew. So a
request's output is the same, to the bit, with drafts and without them. For proposals that are certain, as these are,
this is rejection sampling (https://arxiv.org/abs/2302.01318): a token is kept with its probability, and what replaces
it has the distribution that is left.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from math import inf
from time import perf_counter
from typing import Literal, Protocol

from metrics.definitions import text as metrics
from metrics.metric import CounterSeries, GaugeSeries
from pipelines.messages.text import MAX_DRAFT, ProposerKind
from pipelines.text.sequence import Sequence
from pipelines.text.step_cost import StepCost

log = logging.getLogger(__name__)

Source = ProposerKind | Literal["grammar"]  # of a draft; a grammar's are those that it leaves no choice about


@dataclass(frozen=True, slots=True)
class Want:
    """At most `length` tokens after those that the sequence has."""

    sequence: Sequence
    length: int


class Proposer(Protocol):
    """May propose anything, or nothing; keeps what it likes for each sequence until that is released."""

    @property
    def free(self) -> bool:
        """Whether proposals cost next to nothing, so that even one that is not worth a row is welcome."""
        ...

    def seconds(self, sequences: int) -> float:
        """What one more token for each of so many sequences takes."""
        ...

    def propose(self, wants: Rows[Want]) -> list[list[int]]:
        """Tokens for each, in order. A sequence's tokens only ever grow, in whichever way they do."""
        ...

    def release(self, sequence: Sequence) -> None:
        """Forget a sequence, which has ended or been put back. Idempotent."""
        ...

    def gauges(self) -> dict[GaugeSeries, float]: ...

    def check(self) -> None:
        """Verify its own invariants, when no sequence is left. Raises RuntimeError."""
        ...


@dataclass(slots=True)
class DraftTotals:
    """Of one proposer, over this worker's life."""

    drafts: int = 0
    drafted: int = 0
    accepted: Counter[int] = field(default_factory=Counter)  # by position in the draft, from 0
    seconds: float = 0.0

    def add(self, drafted: int, accepted: int) -> None:
        self.drafts += 1
        self.drafted += drafted
        self.accepted.update(range(accepted))

    def counters(self, kind: Source) -> dict[CounterSeries, float]:
        """Empty before the first draft."""
        if not self.drafts:
            return {}
        return {
            metrics.DRAFTS.series(kind): self.drafts,
            metrics.DRAFTED.series(kind): self.drafted,
            metrics.ACCEPTED.series(kind): self.accepted.total(),
            metrics.DRAFT_SECONDS.series(kind): self.seconds,
            **{metrics.ACCEPTED_AT.series(kind, position): count for position, count in self.accepted.items()},
        }


class Speculation:
    """Asks the proposers, as far as it pays. What a proposer does never fails a request."""

    def __init__(self, proposers: Mapping[ProposerKind, Proposer], decode_cost: Callable[[], StepCost]) -> None:
        """`decode_cost` measures what decode steps of the model cost."""
        self._proposers = proposers
        self._decode_cost = decode_cost
        self._cost: StepCost | None = None  # not measured yet
        sources: list[Source] = [*proposers, "grammar"]
        self._totals = {source: DraftTotals() for source in sources}

    def measure(self) -> StepCost:
        """What decode steps cost; at the latest, when drafts are wanted for the first time."""
        if self._cost is None:
            self._cost = self._decode_cost()
        return self._cost

    def propose(self, wants: Rows[Want], running: int) -> None:
        """Drafts for the next step, which decodes `running` sequences; `length` of a want is what there is room for."""
        began = perf_counter()
        wants = [want for want in wants if not self._force(want, running)]
        self._totals["grammar"].seconds += perf_counter() - began
        for kind, proposer in self._proposers.items():
            asked = [want for want in wants if want.sequence.drafting and want.sequence.drafting.kind == kind]
            if not asked:
                continue
            began = perf_counter()
            try:
                self._propose(proposer, asked, running)
            except Exception:
                log.exception("the %s proposer broke on %d sequences; they go on without drafts", kind, len(asked))
                for want in asked:
                    want.sequence.drafting = None
                    proposer.release(want.sequence)
            self._totals[kind].seconds += perf_counter() - began

    def _force(self, want: Want, running: int) -> bool:
        """Draft what the sequence's rules leave no choice about. Whether there is such."""
        sequence = want.sequence
        if not sequence.rules or sequence.drafting is None:
            return False
        sequence.drafting.take((), 0)
        # They are right for certain.
        if want.length == 0 or self.measure().threshold(running) >= 1:
            return False
        forced = sequence.rules.forced()[: min(want.length, MAX_DRAFT)]
        if forced:
            sequence.drafting.force(forced)
        return bool(forced)

    def _propose(self, proposer: Proposer, asked: Rows[Want], running: int) -> None:
        threshold = self.measure().threshold(running, proposer.seconds(len(asked)) / len(asked))
        lengths: list[int] = []
        wants: list[Want] = []
        for want in asked:
            drafting = want.sequence.drafting
            assert drafting is not None
            drafting.take((), 0)
            length = drafting.length(want.length, threshold)
            if length or (proposer.free and threshold < inf):  # beside so many, a guess is not worth its look either
                lengths.append(length)
                wants.append(Want(want.sequence, length or 1))
            else:
                drafting.recover()
        if wants:
            for want, length, proposed in zip(wants, lengths, proposer.propose(wants), strict=True):
                assert want.sequence.drafting is not None
                want.sequence.drafting.take(proposed, length)

    def learn(self, sequence: Sequence, drafted: int, accepted: int, token: int) -> None:
        """How the drafts that a step verified fared; `token`: the first that it gave."""
        drafting = sequence.drafting
        if drafting is None:
            return
        if drafting.forced:
            if drafted:
                self._totals["grammar"].add(drafted, accepted)
            return
        if drafting.kind is None:
            return
        drafting.learn(drafted, accepted, token)
        if drafted:
            self._totals[drafting.kind].add(drafted, accepted)
            sequence.group.drafted += drafted
            sequence.group.accepted += accepted

    def release(self, sequence: Sequence) -> None:
        """It has ended, or was put back. Idempotent."""
        if sequence.drafting is not None:
            sequence.drafting.take((), 0)
            if sequence.drafting.kind is not None:
                self._proposers[sequence.drafting.kind].release(sequence)

    def counters(self) -> dict[CounterSeries, float]:
        return {name: value for kind, totals in self._totals.items() for name, value in totals.counters(kind).items()}

    def gauges(self) -> dict[GaugeSeries, float]:
        return {name: value for proposer in self._proposers.values() for name, value in proposer.gauges().items()}

    def check(self) -> None:
        """Raises RuntimeError."""
        for proposer in self._proposers.values():
            proposer.check()
