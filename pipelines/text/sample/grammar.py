"""The grammar of a text: what may come next, and where it may end."""

from collections.abc import Sequence as Rows
from typing import Self

import numpy as np
from llguidance import LLMatcher

from pipelines.text.grammar.compiler import Automaton, Masks, reason
from pipelines.text.sample.logits_rule import LogitsRule
from pipelines.text.sample.sampling import Floats, Ids, SamplingParams


class KeepsToGrammar(LogitsRule):
    """Bans what the grammar does not take next. A text may end where the grammar takes it as a whole: there EOS may be
    drawn, and stop ids that have no text."""

    def __init__(self, automaton: Automaton, matcher: LLMatcher, ends: Ids, mask: Masks | None = None) -> None:
        """`ends`: the ids that may end a text and are none of it."""
        self._automaton = automaton
        self._matcher = matcher
        self._ends = ends
        self._mask = mask  # [words], of the next token; replaced, never written to

    @classmethod
    def of(cls, params: SamplingParams, prompt: Rows[int]) -> Self | None:
        if params.grammar is None:
            return None
        ends = params.eos_ids | (params.stop_ids & params.grammar.tokens.special_ids)
        return cls(params.grammar, params.grammar.start(), np.array(sorted(ends), dtype=np.int64))

    @classmethod
    def compute_ahead(cls, rules: Rows[Self]) -> None:
        # Those of a step are of one model.
        due = [rule for rule in rules if rule._mask is None]
        if due:
            masks = due[0]._automaton.tokens.masks([rule._matcher for rule in due])
            for rule, mask in zip(due, masks, strict=True):
                rule._mask = mask

    def apply(self, row: Floats) -> None:
        self.compute_ahead([self])
        assert self._mask is not None
        allowed = np.zeros(len(row), dtype=np.bool_)
        bits = np.unpackbits(self._mask.view(np.uint8), count=min(len(row), 32 * len(self._mask)), bitorder="little")
        allowed[: len(bits)] = bits
        allowed[list(self._automaton.tokens.eos_ids)] = False  # under ignore_eos they end nothing
        if self.may_end:
            allowed[self._ends] = True
        np.copyto(row, -np.inf, where=~allowed)

    def accept(self, token: int) -> None:
        if token not in self._ends:
            self._matcher.consume_token(token)  # what is wrong with it leaves nothing that may follow
            self._mask = None

    def forced(self) -> Rows[int]:
        return self._matcher.compute_ff_tokens()

    def fork(self) -> Self:
        return type(self)(self._automaton, self._matcher.deep_copy(), self._ends, self._mask)

    @property
    def may_end(self) -> bool:
        return self._matcher.is_accepting() and not self._matcher.is_error()

    @property
    def complete(self) -> bool:
        return self.may_end

    @property
    def reason(self) -> str:
        return reason(self._matcher) or "the grammar and the request's other settings have no token in common"
