"""What a rule of one sequence's logits is, and what it may rely on."""

from collections.abc import Sequence as Rows
from typing import Protocol, Self

from pipelines.text.sample.sampling import Floats, SamplingParams


class LogitsRule(Protocol):
    """Changes the logits that one sequence draws from; the next ones may depend on what has been said.

    Derive from this, and name the class in `pipelines.text.sample.rules.KINDS`. A sequence has a rule exactly where
    `of` gives one, and only a sequence without any is plain.

    What a rule may rely on, whatever else runs:

    - **Rows.** `apply` is given a copy of the model's own logits, finite but for -inf, which the kinds before it in
      `KINDS` have changed. Temperature, top-k, top-p and min-p come after all rules; log-probabilities are of the
      model's own logits and see none. -inf bans a token: no kind takes that back. Where all are banned the choice ends
      with `stop` if a rule calls the text `complete`; else the request fails as `invalid_request`.
    - **Order.** `apply` for the first token, `accept` of it, `apply` for the second, and so on: `accept` has each
      generated token once, in order, the one that ends the choice too, and never one that the `apply` before it has
      banned. The prompt is not accepted; `of` is given it.
    - **Steps that are run again.** A step that fails is repeated: `apply` may come several times before `accept`, and
      must leave the rule as it was. Where it raises, this request alone fails. There may be no further call at any
      time: a request can be aborted.
    - **Drafts.** The row behind a draft is looked at only where that draft was drawn from the row before it. It is
      given a fork that has accepted the drafts up to there and is dropped at the end of the step; then the sequence's
      own rule accepts what was drawn. So nothing is ever taken back, no rule has to accept a draft that it bans, and
      none sees a row behind EOS, or behind a stop id where the text `may_end`; behind a stop string a fork may. A
      proposer may read a sequence's rules (`Want.sequence.rules`): they stand before the next token.
    - **Preemption.** A sequence that is put back keeps its rules: what is replayed is neither applied to nor accepted
      again.
    - **Choices.** Each of `n` choices has its own: the first what `of` gave, the others forks of it, taken before
      anything was accepted.
    - **Threads.** `of` and those forks are called on a pool thread, all else on the engine's.
    - **Rows at once.** The rows of a step are sampled in rounds: the first row of each sequence, then the rows behind
      the drafts that were right, and so on. Before each, `compute_ahead` is called once for all rules of a kind. What
      they compute depends on what was accepted alone, so `accept` may begin it beside the next forward.
    """

    @classmethod
    def of(cls, params: SamplingParams, prompt: Rows[int]) -> Self | None:
        """The rule of a sequence with these settings, whose prompt is these tokens; None where they ask for none.

        Raises InvalidRequest where it can't be kept.
        """
        ...

    def apply(self, row: Floats) -> None:
        """Change `row` [vocab] in place, for the next token."""
        ...

    def accept(self, token: int) -> None:
        """The sequence has said one more token. Raises nothing: what is wrong, the next `apply` raises."""
        ...

    def fork(self) -> Self:
        """Another one in the same state, of which nothing that it accepts is seen here. One without a state may give
        itself."""
        ...

    def forced(self) -> Rows[int]:
        """The tokens that come next because it bans all others. They are drafted and verified as any, so that it may
        say less than it knows; it may not depend on having been asked."""
        return ()

    @property
    def may_end(self) -> bool:
        """Whether the text that was accepted may be all. Where it may not, the next token is taken for no stop id, and
        has no part in a stop string."""
        return True

    @property
    def complete(self) -> bool:
        """Whether the text that was accepted ends where no token may follow, whichever rule it is that bans them."""
        return False

    @property
    def reason(self) -> str:
        """Why no token may follow, for the caller."""
        return ""

    @property
    def done(self) -> bool:
        """Whether it changes no row any more, whatever is accepted. The sequence drops it then."""
        return False

    @classmethod
    def compute_ahead(cls, rules: Rows[Self]) -> None:
        """All rules of this kind whose `apply` comes next: what they need of their own state may be computed together.
        `apply` gives the same bits without it."""
