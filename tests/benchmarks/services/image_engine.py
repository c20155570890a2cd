"""The image pipeline's step loop, without the gateway around it. Arguments: a diffusers folder, threads.

{"jobs": [{"prompt": text, "steps": n, "seed": n, "after": seconds, "cancel": seconds}, …]} -> [seconds, …]:
how long each job took. `after`: when it comes, counted from the request. `cancel`: when its client leaves, counted so
too and before its end; its value is then the time until nothing of it is left, as a share of the step it waited for.
"""

import sys
from itertools import count
from time import monotonic, sleep
from typing import Any

from pipelines.base import Ticket
from pipelines.image.pipeline import ImagePipeline
from pipelines.messages.frames import Done, Failed, ModelSpec
from pipelines.messages.image import ImageOptions, ImageRequest
from tests.benchmarks.services.loop import serve


class ImageService:
    def __init__(self, source: str, threads: int) -> None:
        kind = "pipelines.image.pipeline:ImagePipeline"
        spec = ModelSpec(
            name="image", kind="image", pipeline=kind, source=source, options=ImageOptions(), threads=threads
        )
        self._pipeline, _ = ImagePipeline.load(spec)
        self._ids = map(str, count())

    def __call__(self, request: dict[str, Any]) -> list[float]:
        start = monotonic()
        waiting = sorted(enumerate(request["jobs"]), key=lambda each: each[1].get("after", 0.0))
        leaving = sorted((start + job["cancel"], place) for place, job in enumerate(request["jobs"]) if "cancel" in job)
        places: dict[str, int] = {}
        ids: dict[int, str] = {}
        began: dict[int, float] = {}
        found: dict[int, float] = {}  # of each job
        step = 0.0  # seconds of the last one
        while len(found) < len(request["jobs"]):
            now = monotonic()
            while waiting and start + waiting[0][1].get("after", 0.0) <= now:
                place, job = waiting.pop(0)
                ticket = Ticket(next(self._ids), "interactive", now)
                places[ticket.id], ids[place], began[place] = place, ticket.id, now
                asked = ImageRequest(prompt=job["prompt"], steps=job["steps"], seed=job["seed"])
                self._pipeline.admit(self._pipeline.prepare(ticket, asked))
            while leaving and leaving[0][0] <= now:
                due, place = leaving.pop(0)
                self._pipeline.abort(ids[place])
                found[place] = (monotonic() - due) / step
            if not self._pipeline.busy:
                sleep(0.0005)
                continue
            before = monotonic()
            events = self._pipeline.step().events
            step = monotonic() - before
            for event in events:
                if isinstance(event, Done):
                    found[places[event.id]] = monotonic() - began[places[event.id]]
                elif isinstance(event, Failed):
                    raise RuntimeError(event.message)
        return [found[place] for place in range(len(found))]


if __name__ == "__main__":
    serve(ImageService(sys.argv[1], int(sys.argv[2])))
