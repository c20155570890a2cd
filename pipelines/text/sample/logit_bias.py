"""`logit_bias`: what is added to the logits of single tokens."""

from collections.abc import Sequence as Rows
from typing import Self

import numpy as np

from pipelines.text.sample.logits_rule import LogitsRule
from pipelines.text.sample.sampling import Floats, SamplingParams


class LogitBias(LogitsRule):
    """The same for every token: it has no state."""

    def __init__(self, params: SamplingParams) -> None:
        self._ids = np.fromiter(params.logit_bias, np.int64)
        self._biases = np.fromiter(params.logit_bias.values(), np.float32)

    @classmethod
    def of(cls, params: SamplingParams, prompt: Rows[int]) -> Self | None:
        return cls(params) if params.logit_bias else None

    def apply(self, row: Floats) -> None:
        row[self._ids] += self._biases

    def accept(self, token: int) -> None:
        pass

    def fork(self) -> Self:
        return self
