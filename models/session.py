"""What an encoder needs of whatever runs its graph."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]


class Session(Protocol):
    """One graph on one device. Not to be run by two threads at once."""

    provider: str  # for people
    inputs: frozenset[str]
    outputs: dict[str, tuple[int | str | None, ...]]  # name -> shape; an axis of any size has a name, or None
    multiple: int  # texts come padded to a length that is a multiple of it

    def run(self, inputs: Mapping[str, Array], outputs: list[str] | None = None) -> list[NDArray[np.float32]]:
        """All outputs, or the named ones, on the host."""
        ...

    def padded_tokens(self, lengths: Sequence[int]) -> int:
        """What a run of texts of these lengths reads, padding included."""
        ...
