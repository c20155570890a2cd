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

    def ends(self, token: int) -> bool:
        """Whether a choice ends with it, wherever it comes."""
        return token in self.eos_ids or token in self.stop_ids


def uniform(seed: int, position: int) -> float:
    """The number in [0, 1) that decides the token at `position` of an output.

    A pure function: a request draws the same numbers alone, in any batch, when a step is run again and when a draft is
    verified.
    """
    digest = blake2b(position.to_bytes(8, "little"), key=seed.to_bytes(8, "little"), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53
