"""What every check is given, and how they tell time."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

Result = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Context:
    device: torch.device
    folder: Path  # for files of the checks, empty at first
    reduced: bool  # small shapes and few repetitions: tries the checks themselves, measures nothing

    def pick(self, full: Any, reduced: Any) -> Any:
        return reduced if self.reduced else full


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(call: Callable[[], object], repeats: int, device: torch.device) -> float:
    """The median of so many calls; one before them is not counted."""
    taken = []
    for _ in range(repeats + 1):
        synchronise(device)
        began = perf_counter()
        call()
        synchronise(device)
        taken.append(perf_counter() - began)
    return median(taken[1:])


def difference(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest, relative to the largest wanted; infinite where either is no number."""
    error = ((found.float() - wanted.float()).abs().max() / wanted.float().abs().max().clamp(min=1e-9)).item()
    return float(error) if error == error else float("inf")
