"""What a request asks of the sampler, resolved: every setting has a value."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Settings of one sequence. A setting that is off has the value that changes nothing."""

    temperature: float = 1.0  # 0: greedy
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0
    max_tokens: int
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()  # the request's own
    eos_ids: frozenset[int] = frozenset()  # the model's; empty under ignore_eos
    logprobs: int | None = None

    @property
    def greedy(self) -> bool:
        """Settings under which only the most likely token can be drawn are greedy decoding."""
        return self.temperature == 0 or self.top_k == 1 or self.top_p == 0

    @property
    def penalised(self) -> bool:
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    @property
    def plain(self) -> bool:
        """Greedy, and nothing else wanted of the logits."""
        return (
            self.greedy
            and not self.penalised
            and not self.logit_bias
            and self.logprobs is None
            and not (self.min_tokens and (self.stop_ids or self.eos_ids))
        )


def uniform(seed: int, position: int) -> float:
    """The number in [0, 1) that decides the token at `position` of an output.

    A pure function: a request draws the same numbers alone, in any batch, when a step is run again and when a draft is
    verified.
    """
    digest = blake2b(position.to_bytes(8, "little"), key=seed.to_bytes(8, "little"), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


class TokenCounts:
    """The distinct tokens of a sequence, and how often each was generated: what penalties are computed from."""

    def __init__(self, prompt: list[int]) -> None:
        distinct = list(dict.fromkeys(prompt))
        self._slots = {token: slot for slot, token in enumerate(distinct)}
        self._ids: Ids = np.array(distinct, dtype=np.int64)
        self._counts: Floats = np.zeros(len(distinct), dtype=np.float32)

    def add(self, token: int) -> None:
        """One more generated token."""
        slot = self._slots.setdefault(token, len(self._slots))
        if slot >= len(self._ids):
            self._ids = np.resize(self._ids, max(16, 2 * slot))  # the new half is overwritten before it is read
            counts = np.zeros(len(self._ids), dtype=np.float32)
            counts[:slot] = self._counts[:slot]
            self._counts = counts
        self._ids[slot] = token
        self._counts[slot] += 1

    def extended(self, token: int) -> "TokenCounts":
        """A copy with one more generated token."""
        copy = object.__new__(TokenCounts)
        copy._slots, copy._ids, copy._counts = dict(self._slots), self._ids.copy(), self._counts.copy()
        copy.add(token)
        return copy

    def apply(self, logits: Floats, params: SamplingParams) -> None:
        """Penalise `logits` [vocab] in place.

        Repetition (CTRL, https://arxiv.org/abs/1909.05858, section 4.1) counts the prompt in; presence and frequency,
        as in OpenAI's API, only what was generated.
        """
        size = len(self._slots)
        ids, counts = self._ids[:size], self._counts[:size]
        values = logits[ids]
        if params.repetition_penalty != 1:
            factor = np.float32(params.repetition_penalty)
            values = np.where(values > 0, values / factor, values * factor)
        values -= np.float32(params.frequency_penalty) * counts + np.float32(params.presence_penalty) * (counts > 0)
        logits[ids] = values
