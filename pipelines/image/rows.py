"""How many rows a denoiser call has: as many as make each of them cheaper, found by measurement, and fewer while brief
images come and go, which wait for the call that is running."""

import logging
from math import inf
from time import perf_counter

import torch

from models.diffusion.family import Family, Size
from pipelines.rate import Rate

log = logging.getLogger(__name__)

MOST = 32
LEAST = 2  # an image and its unconditional row
GAIN = 0.95  # twice the rows have to bring the time of each below this share of what it was
SLOW_S = 2.0  # a call that takes so long has the machine busy already: others would only wait for it
RUNS = 3
BRIEF_WINDOW_S = 5.0  # after a brief image the next one is likely for so many seconds
SHARED_STEP_S = 0.04  # what a call of long images takes then: a brief one waits for half of it in the mean
SMOOTHING = 0.1  # weight of the last call in the rate


class RowCap:
    """For every size, from what was measured at one: the work of a call goes with the latents in all of its rows."""

    def __init__(self, rows: int, latents: int | None = None, rate: float = 0.0) -> None:
        """`latents`: of a row, where `rows` was measured; None: the same number of rows for every size. `rate`: latents
        a second, in all rows; 0: not known."""
        self.rows = max(rows, LEAST)
        self._latents = latents
        self._rate = Rate(SMOOTHING, rate)
        self._brief_until = -inf  # monotonic seconds

    def brief(self, now: float) -> None:
        """A brief image came, or is still on its way, at `now` monotonic seconds."""
        self._brief_until = now + BRIEF_WINDOW_S

    def of(self, latents: int, now: float = inf, *, brief: bool = True) -> int:
        """For rows of so many latents, of images that are brief or not."""
        most = self.rows
        if self._latents is not None:
            most = min(MOST, max(LEAST, self.rows * self._latents // latents))
        if brief or not self._rate.value or now >= self._brief_until:
            return most
        return min(most, max(LEAST, int(SHARED_STEP_S * self._rate.value) // latents))

    def observe(self, latents: int, seconds: float) -> None:
        """A call with so many latents, in all of its rows, has been run."""
        self._rate.observe(latents, seconds)


def measure(family: Family, given: int | None) -> RowCap:
    """Warm the model up, and see how far a call may grow; `given` where the operator says so."""
    size = Size(family.defaults.width, family.defaults.height)
    _, height, width = family.latent_shape(size)
    with torch.inference_mode():
        # Every path that a request takes has been taken once.
        family.autoencoder.decode(torch.zeros(1, *family.latent_shape(size), device=family.checkpoint.device))
        seconds = _seconds(family, size, 1)
        if given is not None:
            return RowCap(given)
        best, rows, tried = seconds, 1, 1
        # One size that brings nothing may be the machine's doing, two are not.
        while tried < min(MOST, rows * 4) and best * tried < SLOW_S:
            tried *= 2
            try:
                each = _seconds(family, size, tried) / tried
            except torch.OutOfMemoryError:
                break
            if each <= best * GAIN:
                best, rows = each, tried
    log.info("%d rows a step at %s: %.1f ms each", rows, size, best * 1e3)
    return RowCap(rows, height * width, height * width / best)


def _seconds(family: Family, size: Size, rows: int) -> float:
    """The fastest of a few calls; the first one, which may allocate, is not counted."""
    device = family.checkpoint.device
    text = family.encode([family.tokenise("a")])[0]
    latents = torch.zeros(rows, *family.latent_shape(size), device=device)
    timesteps = torch.full((rows,), 500.0)
    fastest = float("inf")
    for run in range(RUNS + 1):
        began = perf_counter()
        family.predict(latents, timesteps, [text] * rows, [1.0] * rows, size).sum().item()
        taken = perf_counter() - began
        if run > 0 or taken > SLOW_S:
            fastest = min(fastest, taken)
        if taken > SLOW_S:
            break
    return fastest
