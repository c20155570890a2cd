"""How many rows a denoiser call has: as many as make each of them cheaper, found by measurement."""

import logging
from time import perf_counter

import torch

from models.diffusion.family import Family, Size

log = logging.getLogger(__name__)

MOST = 32
LEAST = 2  # an image and its unconditional row
GAIN = 0.95  # twice the rows have to bring the time of each below this share of what it was
SLOW_S = 2.0  # a call that takes so long has the machine busy already: others would only wait for it
RUNS = 3


class RowCap:
    """For every size, from what was measured at one: the work of a call goes with the latents in all of its rows."""

    def __init__(self, rows: int, latents: int | None = None) -> None:
        """`latents`: of a row, where `rows` was measured; None: the same number of rows for every size."""
        self.rows = max(rows, LEAST)
        self._latents = latents

    def of(self, latents: int) -> int:
        """For rows of so many latents."""
        if self._latents is None:
            return self.rows
        return min(MOST, max(LEAST, self.rows * self._latents // latents))


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
    return RowCap(rows, height * width)


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
