"""How many pixels one step encodes while running sequences wait for it."""

from pipelines.rate import Rate

STEP_S = 0.1  # what a step should take, but for one of a single image
SMOOTHING = 0.2  # weight of the last step in the rate


class StepPixels:
    def __init__(self, fixed: int | None) -> None:
        """`fixed`: as configured; None: by the measured time of steps."""
        self._fixed = fixed
        self._rate = Rate(SMOOTHING)  # pixels a second

    @property
    def most(self) -> int:
        """Of a step of several images."""
        return int(STEP_S * self._rate.value) if self._fixed is None else self._fixed

    def observe(self, pixels: int, seconds: float) -> None:
        """A step has encoded so many in so many seconds."""
        self._rate.observe(pixels, seconds)
