"""diffusers' own pipeline, one request after the other. Arguments: a diffusers folder, threads.

Requests and answers as in `image_engine.py`; a picture ends as PNG there, so it does here.
"""

import io
import sys
from time import monotonic
from typing import Any

import torch
from diffusers import StableDiffusionPipeline

from tests.benchmarks.services.loop import serve


class StockService:
    def __init__(self, source: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self._pipeline = StableDiffusionPipeline.from_pretrained(source, low_cpu_mem_usage=False)
        self._pipeline.set_progress_bar_config(disable=True)

    def __call__(self, request: dict[str, Any]) -> list[float]:
        seconds: list[float] = []
        for job in request["jobs"]:
            began = monotonic()
            generator = torch.Generator("cpu").manual_seed(job["seed"])
            found = self._pipeline(job["prompt"], num_inference_steps=job["steps"], generator=generator)
            found.images[0].save(io.BytesIO(), "PNG")
            seconds.append(monotonic() - began)
        return seconds


if __name__ == "__main__":
    serve(StockService(sys.argv[1], int(sys.argv[2])))
