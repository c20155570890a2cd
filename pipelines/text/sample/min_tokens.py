"""`min_tokens`: nothing ends a choice before it has so many."""

from collections.abc import Sequence as Rows
from typing import Self

import numpy as np

from pipelines.text.sample.logits_rule import LogitsRule
from pipelines.text.sample.sampling import Floats, Ids, SamplingParams


class MinTokens(LogitsRule):
    """Bans EOS and stop ids until so many tokens were generated."""

    def __init__(self, left: int, ids: Ids) -> None:
        self._left = left
        self._ids = ids  # ascending

    @classmethod
    def of(cls, params: SamplingParams, prompt: Rows[int]) -> Self | None:
        if params.min_tokens == 0 or not (params.eos_ids or params.stop_ids):
            return None
        return cls(params.min_tokens, np.array(sorted(params.eos_ids | params.stop_ids), dtype=np.int64))

    def apply(self, row: Floats) -> None:
        row[self._ids[: np.searchsorted(self._ids, len(row))]] = -np.inf  # a tokenizer may have more

    def accept(self, token: int) -> None:
        self._left -= 1

    def fork(self) -> Self:
        return type(self)(self._left, self._ids)

    @property
    def done(self) -> bool:
        return self._left <= 0
