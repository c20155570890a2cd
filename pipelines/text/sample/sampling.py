"""What a request asks of the sampler, resolved: every setting has a value."""

import secrets
from hashlib import blake2b

import numpy as np
import numpy.typing as npt
from msgspec.structs import asdict

from pipelines.messages.sampling import Sampling, SamplingDefaults, SamplingValues
from pipelines.text.grammar.compiler import Automaton

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


class SamplingParams(SamplingValues, frozen=True, kw_only=True):
    """Settings of one sequence."""

    seed: int = 0
    max_tokens: int
    stop: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()  # the request's own
    eos_ids: frozenset[int] = frozenset()  # the model's; empty under ignore_eos
    grammar: Automaton | None = None

    @property
    def greedy(self) -> bool:
        """Settings under which only the most likely token can be drawn are greedy decoding."""
        return self.temperature == 0 or self.top_k == 1 or self.top_p == 0

    def ends(self, token: int) -> bool:
        """Whether a choice ends with it, wherever it comes."""
        return token in self.eos_ids or token in self.stop_ids


def resolve(
    asked: Sampling,
    defaults: SamplingDefaults,
    *,
    room: int,
    eos_ids: frozenset[int],
    grammar: Automaton | None = None,
) -> SamplingParams:
    """What holds for a request. `room`: tokens that its context has for the output; `eos_ids`: those of the model;
    `grammar`: the one that is asked for, compiled."""
    values = asdict(defaults)
    values |= {name: value for name in _RESOLVED if (value := getattr(asked, name)) is not None}
    return SamplingParams(
        **values,
        seed=secrets.randbits(64) if asked.seed is None else asked.seed % 2**64,
        max_tokens=room if asked.max_tokens is None else asked.max_tokens,
        stop=(asked.stop,) if isinstance(asked.stop, str) else tuple(asked.stop or ()),
        stop_ids=frozenset(asked.stop_token_ids or ()),
        eos_ids=frozenset() if asked.ignore_eos else eos_ids,
        grammar=grammar,
    )


_RESOLVED = SamplingValues.__struct_fields__  # under their own names


def uniform(seed: int, position: int) -> float:
    """The number in [0, 1) that decides the token at `position` of an output.

    A pure function: a request draws the same numbers alone, in any batch, when a step is run again and when a draft is
    verified.
    """
    digest = blake2b(position.to_bytes(8, "little"), key=seed.to_bytes(8, "little"), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53
