"""The logits rules of a sequence."""

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Rows

import numpy as np

from pipelines.text.sample.logit_bias import LogitBias
from pipelines.text.sample.logits_rule import LogitsRule
from pipelines.text.sample.min_tokens import MinTokens
from pipelines.text.sample.penalties import Penalties
from pipelines.text.sample.sampling import Floats, SamplingParams

KINDS: tuple[type[LogitsRule], ...] = (Penalties, LogitBias, MinTokens)  # in the order in which they are applied


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

    def fork(self) -> "Rules":
        """Of each a fork."""
        return Rules(rule.fork() for rule in self._rules)


def apply_all(rules: Rows[Rules], logits: Floats) -> None:
    """The rules of sequence i to row i of `logits` [rows, vocab], in place: a kind at a time for all of them, which
    gives the same bits as `Rules.apply` of each."""
    if len(rules) == 1:
        rules[0].apply(logits[0])
        return
    members: dict[type[LogitsRule], list[tuple[LogitsRule, int]]] = {}
    for row, own in enumerate(rules):
        for rule in own:
            members.setdefault(type(rule), []).append((rule, row))
    for kind in sorted(members, key=KINDS.index):
        alike, at = zip(*members[kind], strict=True)
        kind.apply_all(alike, logits, np.array(at, dtype=np.int64))
