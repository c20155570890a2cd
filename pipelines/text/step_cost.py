"""What decode steps cost on this machine: whether one more row, or one more proposal, pays."""

from dataclasses import dataclass
from math import inf

MARGIN = 1.25  # a row costs more where it is the first of a tile of them
MOST_STREAMS = 8  # beside more sequences than that, a step's time goes into its rows, and no row is cheap


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a decode step of one model: `base` and `row` for each row, as measured."""

    base: float
    row: float

    @staticmethod
    def of(one: float, several: float, rows: int) -> "StepCost":
        """From the times of a step of one row and of one of `rows`."""
        row = max(0.0, (several - one) / (rows - 1))
        return StepCost(max(0.0, one - row), row)

    def seconds(self, rows: int) -> float:
        return self.base + rows * self.row

    def threshold(self, rows: int, proposal: float = 0.0) -> float:
        """The probability of being accepted from which on one more row pays, beside `rows` that each give a token.

        `proposal`: seconds that each token takes to be proposed. Row and proposal have to give clearly more tokens a
        second than the step does without them: what they cost is an estimate.
        """
        if rows > MOST_STREAMS:
            return inf
        plain = self.seconds(rows)
        return MARGIN * rows * (self.row + proposal) / plain if plain > 0 else 0.0
