"""Pixels to PNG, JPEG and WebP on a thread of its own: a large picture takes as long as a step."""

import io
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from pipelines.image.job import ImageJob, Output

Pixels = NDArray[np.uint8]  # [H, W, 3]

QUALITY = {"jpeg": 95, "webp": 90}
FAST_PNG = 1  # zlib's level for previews, which are looked at once


@dataclass(frozen=True, slots=True)
class File:
    """A picture of a job, or preview `number` of it. `data` or `error`."""

    job: ImageJob
    number: int | None
    data: bytes = b""
    error: Exception | None = None


class FileWriter:
    """Files come back in the order of their pictures. Belongs to the engine thread."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="files")
        self._pending: deque[Future[File]] = deque()

    def __len__(self) -> int:
        return len(self._pending)

    def put(self, job: ImageJob, pixels: Pixels, number: int | None = None) -> None:
        self._pending.append(self._thread.submit(_write, job, pixels, number))

    def wait(self, seconds: float) -> None:
        """For the next one, at most so long."""
        if self._pending:
            wait([self._pending[0]], timeout=seconds)

    def finished(self) -> list[File]:
        files: list[File] = []
        while self._pending and self._pending[0].done():
            files.append(self._pending.popleft().result())
        return files


def to_bytes(pixels: torch.Tensor) -> list[Pixels]:
    """[B, 3, H, W] in -1…1 to bytes, rounded, as diffusers' image processor does."""
    scaled = (pixels * 0.5 + 0.5).clamp(0, 1).permute(0, 2, 3, 1).cpu().numpy()
    return list((scaled * 255).round().astype(np.uint8))


def encode(pixels: Pixels, output: Output, *, preview: bool = False) -> bytes:
    image, file = Image.fromarray(pixels), io.BytesIO()
    match output.format:
        case "png" if preview:
            image.save(file, "PNG", compress_level=FAST_PNG)
        case "png":
            image.save(file, "PNG")
        case format:
            quality = QUALITY[format] if output.compression is None else output.compression
            image.save(file, format.upper(), quality=quality)
    return file.getvalue()


def _write(job: ImageJob, pixels: Pixels, number: int | None) -> File:
    if job.order.gone:
        return File(job, number)
    try:
        return File(job, number, encode(pixels, job.order.output, preview=number is not None))
    except Exception as error:  # noqa: BLE001 - whatever a format can't hold ends this request alone
        return File(job, number, error=error)
