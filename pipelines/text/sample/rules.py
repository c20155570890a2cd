"""The logits rules of a sequence."""

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Rows

from pipelines.text.sample.grammar import KeepsToGrammar
from pipelines.text.sample.logit_bias import LogitBias
from pipelines.text.sample.logits_rule import LogitsRule
from pipelines.text.sample.min_tokens import MinTokens
from pipelines.text.sample.penalties import Penalties
from pipelines.text.sample.sampling import Floats, SamplingParams

# In the order in which they are applied.
KINDS: tuple[type[LogitsRule], ...] = (Penalties, LogitBias, MinTokens, KeepsToGrammar)


class Rules:
    """Those of one sequence, at most one of a kind. False where there are none, or none any more."""

    __slots__ = ("_rules",)

    def __init__(self, rules: Iterable[LogitsRule] = ()) -> None:
        """In the order of `KINDS`."""
        self._rules = tuple(rules)

    @staticmethod
    def of(params: SamplingParams, prompt: Rows[int]) -> "Rules":
        """All that the settings ask for. Raises InvalidRequest where one can't be kept."""
        made = (kind.of(params, prompt) for kind in KINDS)
        return Rules(rule for rule in made if rule is not None)

    def __bool__(self) -> bool:
        return bool(self._rules)

    def __iter__(self) -> Iterator[LogitsRule]:
        return iter(self._rules)

    def apply(self, row: Floats) -> None:
        """All of them to one row [vocab], in place."""
        for rule in self._rules:
            rule.apply(row)

    def accept(self, token: int) -> None:
        """The sequence has said one more token."""
        done = False
        for rule in self._rules:
            rule.accept(token)
            done = done or rule.done
        if done:
            self._rules = tuple(rule for rule in self._rules if not rule.done)

    @property
    def may_end(self) -> bool:
        """Whether the text may end before its next token."""
        return all(rule.may_end for rule in self._rules)

    @property
    def complete(self) -> bool:
        """Whether the text ends here where no token may follow."""
        return any(rule.complete for rule in self._rules)

    @property
    def reason(self) -> str:
        """Why no token may follow, where there is more to say of it."""
        return next((rule.reason for rule in self._rules if rule.reason), "")

    def forced(self) -> Rows[int]:
        """The tokens that come next because one rule leaves no choice: right unless another bans them."""
        return next((tokens for rule in self._rules if (tokens := rule.forced())), ())

    def fork(self) -> "Rules":
        """Of each a fork."""
        return Rules(rule.fork() for rule in self._rules)


def compute_ahead(sequences: Iterable[Rules]) -> None:
    """Before the rules of these are applied: what those of a kind can compute together."""
    members: dict[type[LogitsRule], list[LogitsRule]] = {}
    for rules in sequences:
        for rule in rules:
            members.setdefault(type(rule), []).append(rule)
    for kind, alike in members.items():
        kind.compute_ahead(alike)
