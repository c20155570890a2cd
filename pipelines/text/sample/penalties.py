"""The penalties on tokens that a sequence has already."""

from collections.abc import Sequence as Rows
from typing import Self

import numpy as np

from pipelines.text.sample.logits_rule import LogitsRule
from pipelines.text.sample.sampling import Floats, Ids, SamplingParams


class Penalties(LogitsRule):
    """Repetition (CTRL, https://arxiv.org/abs/1909.05858, section 4.1) counts the prompt in; presence and frequency,
    as in OpenAI's API, only what was generated.

    Holds the distinct tokens of the sequence, and how often each was generated.
    """

    def __init__(self, params: SamplingParams, prompt: Rows[int]) -> None:
        self._repetition = np.float32(params.repetition_penalty)
        self._presence = np.float32(params.presence_penalty)
        self._frequency = np.float32(params.frequency_penalty)
        distinct = list(dict.fromkeys(prompt))
        self._slots = {token: slot for slot, token in enumerate(distinct)}
        self._ids: Ids = np.array(distinct, dtype=np.int64)
        self._counts: Floats = np.zeros(len(distinct), dtype=np.float32)

    @classmethod
    def of(cls, params: SamplingParams, prompt: Rows[int]) -> Self | None:
        wanted = params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0
        return cls(params, prompt) if wanted else None

    def accept(self, token: int) -> None:
        slot = self._slots.setdefault(token, len(self._slots))
        if slot >= len(self._ids):
            self._ids = np.resize(self._ids, max(16, 2 * slot))  # the new half is overwritten before it is read
            counts = np.zeros(len(self._ids), dtype=np.float32)
            counts[:slot] = self._counts[:slot]
            self._counts = counts
        self._ids[slot] = token
        self._counts[slot] += 1

    def fork(self) -> Self:
        copy = object.__new__(type(self))
        copy._repetition, copy._presence, copy._frequency = self._repetition, self._presence, self._frequency
        copy._slots, copy._ids, copy._counts = dict(self._slots), self._ids.copy(), self._counts.copy()
        return copy

    def apply(self, row: Floats) -> None:
        size = len(self._slots)
        ids, counts = self._ids[:size], self._counts[:size]
        values = row[ids]
        values = np.where(values > 0, values / self._repetition, values * self._repetition)
        values -= self._frequency * counts + self._presence * (counts > 0)
        row[ids] = values
