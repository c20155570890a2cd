"""The drafts of one sequence: how long they are to be, by how they have fared."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pipelines.messages.text import ProposerKind

OPTIMISM: dict[ProposerKind, float] = {"ngram": 0.6, "draft": 0.8}  # what a proposer is trusted at first
MEMORY = 0.15  # the weight of the newest trial
# Of the way back to the first trust, with each token that was not drafted for lack of it. Trying again is not free: a
# draft model has to read what was said meanwhile.
RECOVERY = 0.001


@dataclass(slots=True)
class Drafting:
    kind: ProposerKind | None  # None: only what its rules leave no choice about is drafted
    most: int  # tokens a draft
    trust: float = field(init=False)  # that a proposed token is right, where the one before it was
    drafts: tuple[int, ...] = ()  # to be verified in the next step
    forced: bool = False  # nobody had to propose them: there is no choice
    guess: int | None = None  # a proposal that was not worth a row; seeing whether it was right costs nothing

    def __post_init__(self) -> None:
        self.trust = OPTIMISM[self.kind] if self.kind else 0.0

    def length(self, room: int, threshold: float) -> int:
        """Tokens that are worth their rows, at most `room`."""
        worth, chance = 0, self.trust
        while worth < min(self.most, room) and chance > threshold:
            worth += 1
            chance *= self.trust
        return worth

    def take(self, proposed: Sequence[int], length: int) -> None:
        """Tokens for the next step, the first `length` of them to be verified."""
        self.drafts, self.forced = tuple(proposed[:length]), False
        self.guess = proposed[0] if proposed and not length else None

    def force(self, tokens: Sequence[int]) -> None:
        """What has to come next, to be verified in the next step; it says nothing of the proposer."""
        self.drafts, self.forced, self.guess = tuple(tokens), True, None

    def recover(self) -> None:
        """Nothing was proposed, because it was not worth it: after a while it is tried again."""
        if self.kind:
            self.trust += RECOVERY * (OPTIMISM[self.kind] - self.trust)

    def learn(self, drafted: int, accepted: int, token: int) -> None:
        """How a draft fared; `token`: the first that the step gave."""
        for right in [True] * accepted + [False] * (accepted < drafted):
            self.trust += MEMORY * (right - self.trust)
        if self.guess is not None:
            self.trust += MEMORY * ((token == self.guess) - self.trust)
            self.guess = None
