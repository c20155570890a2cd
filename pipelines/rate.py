"""How fast something goes, by the steps that were seen last."""


class Rate:
    """An exponential moving average."""

    def __init__(self, smoothing: float, value: float = 0.0) -> None:
        """`smoothing`: weight of the last step. `value`: the first guess; 0: not known."""
        self._smoothing = smoothing
        self.value = value  # of whatever is counted, a second

    def observe(self, amount: float, seconds: float) -> None:
        """A step has done so much in so many seconds."""
        if seconds > 0:
            rate = amount / seconds
            self.value = self.value + self._smoothing * (rate - self.value) if self.value else rate
