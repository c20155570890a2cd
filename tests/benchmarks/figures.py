"""What a comparison yields: a figure, its definition, and the bounds that it is held to."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the figure should reach (`goal`) and must not miss (`floor`)."""

    goal: float
    floor: float
    lower: bool = False  # smaller is better

    def verdict(self, value: float) -> str:
        if self._reaches(value, self.goal):
            return "goal met"
        return "floor met" if self._reaches(value, self.floor) else "below the floor"

    def _reaches(self, value: float, bound: float) -> bool:
        return value <= bound if self.lower else value >= bound


def at_least(goal: float, floor: float | None = None) -> Bounds:
    return Bounds(goal, goal if floor is None else floor)


def at_most(goal: float) -> Bounds:
    return Bounds(goal, goal, lower=True)


@dataclass(frozen=True, slots=True)
class Figure:
    """One number. `values` has one for each round; the figure is their median."""

    name: str
    definition: str
    unit: str  # "×": a ratio
    values: Sequence[float]
    bounds: Bounds | None = None  # None: for information

    @property
    def value(self) -> float:
        return median(self.values)

    @property
    def verdict(self) -> str:
        return self.bounds.verdict(self.value) if self.bounds else ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What one of the commands has measured."""

    name: str
    date: str
    rounds: int
    seconds: float
    figures: Sequence[Figure]
    notes: Sequence[str] = ()


def ratio(
    name: str, definition: str, over: Sequence[float], under: Sequence[float], bounds: Bounds | None = None
) -> Figure:
    """Round by round, so that what slows the machine for a while slows both sides of it."""
    return Figure(name, definition, "×", [a / b for a, b in zip(over, under, strict=True)], bounds)
