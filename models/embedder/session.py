"""What an encoder needs of whatever runs its graph."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]


class Session(Protocol):
    """One graph on one device."""

    provider: str  # for people
    inputs: frozenset[str]
    outputs: dict[str, tuple[int | str | None, ...]]  # name -> shape; an axis of any size has a name, or None
    streams: int  # runs at once that are faster than one after the other
    concurrency: int  # threads that may call `run` at once, at least as many
    multiple: int  # texts come padded to a length that is a multiple of it

    def run(self, inputs: Mapping[str, Array], outputs: list[str] | None = None) -> list[NDArray[np.float32]]:
        """All outputs, or the named ones, on the host."""
        ...
