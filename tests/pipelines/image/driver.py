"""An image pipeline over a tiny checkpoint, spoken to as the engine does."""

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from models.diffusion.loading import load_family
from pipelines.base import Ticket
from pipelines.image.pipeline import ImagePipeline
from pipelines.image.rows import RowCap
from pipelines.messages.frames import Event, Priority, StepReport
from pipelines.messages.image import ImageOptions, ImageRequest, Picture

MAX_STEPS = 10_000  # of the pipeline, before a test says that it hangs


class ImageDriver:
    def __init__(self, folder: Path, *, max_batch: int = 16, dtype: str | None = None, **options: Any) -> None:
        self.family = load_family(folder, device="cpu", dtype=dtype)
        self.pipeline = ImagePipeline(self.family, ImageOptions(**options), RowCap(max_batch))
        self.reports: list[StepReport] = []

    def open(self, id: str, request: ImageRequest, *, priority: Priority = "interactive") -> None:
        self.pipeline.admit(self.pipeline.prepare(Ticket(id, priority, received=0.0), request))

    def step(self) -> list[Event]:
        result = self.pipeline.step()
        if result.report is not None:
            self.reports.append(result.report)
        return list(result.events)

    def run(self) -> list[Event]:
        events: list[Event] = []
        for _ in range(MAX_STEPS):
            if not self.pipeline.busy:
                return events
            events += self.step()
        raise AssertionError("the pipeline is busy for ever")

    def ticks(self, count: int) -> list[Event]:
        """Until so many denoiser calls were made."""
        before = len(self.denoised)
        events: list[Event] = []
        while len(self.denoised) < before + count:
            events += self.step()
        return events

    @property
    def denoised(self) -> list[int]:
        """Rows of each denoiser call."""
        return [report.rows for report in self.reports if report.kind == "denoise"]

    def draw(self, request: ImageRequest) -> list[np.ndarray]:
        """Its pictures, by index."""
        self.open("alone", request)
        return pictures(self.run(), "alone")


def pictures(events: Iterable[Event], id: str) -> list[np.ndarray]:
    """A request's pictures by index; each came once. [H, W, 3] of bytes."""
    found: dict[int, np.ndarray] = {}
    for event in events:
        if isinstance(event, Picture) and event.id == id:
            assert event.index not in found
            found[event.index] = pixels(event.data)
    return [found[index] for index in range(len(found))]


def pixels(data: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as image:
        return np.array(image.convert("RGB"))


def worst(first: np.ndarray, second: np.ndarray) -> int:
    """The largest difference of any pixel, of 255."""
    assert first.shape == second.shape
    return int(np.abs(first.astype(int) - second.astype(int)).max())


def red_cat(**fields: Any) -> ImageRequest:
    return ImageRequest(**{"prompt": "a red cat", "seed": 7, "steps": 6, "guidance_scale": 4.0, **fields})
