"""Which images the next denoiser call takes: those of one shape, in fair turns.

A batch is built around its *lead*: the image that has had the least service, counted in latents denoised, those of its
request's other images included. So requests get an equal share of the work, whatever the shape and the number of their
images, and an image that arrives joins the others of its shape at their next step.

Images of few steps pass the others, in calls of their own, for up to half of the work: else the few steps of one would
take as long as their share of a long queue.
"""

from collections import Counter
from collections.abc import Callable

from pipelines.image.job import BRIEF_STEPS, WEIGHTS, ImageJob

Bucket = tuple[int, ...]


def bucket_of(job: ImageJob) -> Bucket:
    """What has to be equal within one denoiser call: the latents' shape and the texts' length."""
    assert job.latents is not None
    assert job.order.conditional is not None
    return (*job.latents.shape, *job.order.conditional.states.shape)


class DenoiseQueue:
    """Images that are being denoised. Belongs to the engine thread."""

    def __init__(self) -> None:
        self._jobs: list[ImageJob] = []
        self._arrivals = 0
        self._ahead = 0  # latents of brief images that passed the others, less what the others have had since
        self._clock = 0.0  # the least service of any image when a batch was last taken

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def brief(self) -> bool:
        """Whether any of them is."""
        return any(job.brief for job in self._jobs)

    def add(self, job: ImageJob) -> None:
        # Whoever comes is level with the least served, and behind it: a stream of newcomers can't keep it waiting.
        job.service = max(self._clock, min((each.service for each in self._jobs), default=0.0))
        job.number = self._arrivals
        self._arrivals += 1
        self._jobs.append(job)

    def remove(self, job: ImageJob) -> None:
        self._jobs.remove(job)

    def drop(self, request_id: str) -> None:
        self._jobs = [job for job in self._jobs if job.order.id != request_id]

    def take(self, max_rows: Callable[[ImageJob], int], only: str | None = None) -> list[ImageJob]:
        """The next batch, at least its lead and at most so many rows; empty where nothing waits. With `only`, of one
        request alone. They stay among the others: `served` says that it was run."""
        ready = [job for job in self._jobs if only is None or job.order.id == only]
        if not ready:
            return []
        ready.sort(key=lambda job: (job.service, job.number))
        brief = [job for job in ready if job.brief]
        if brief and self._ahead < BRIEF_STEPS * brief[0].work:
            ready = brief
        lead = ready[0]
        self._clock = max(self._clock, lead.service)
        bucket, room = bucket_of(lead), max(max_rows(lead), lead.rows)
        batch: list[ImageJob] = []
        for job in ready:
            if job.rows <= room and bucket_of(job) == bucket:
                batch.append(job)
                room -= job.rows
        return batch

    def served(self, batch: list[ImageJob]) -> None:
        images = Counter(job.order.id for job in self._jobs)
        for job in batch:
            job.service += WEIGHTS[job.ticket.priority] * job.work * images[job.order.id]
        work = sum(job.work for job in batch)
        passes = all(job.brief for job in batch) and not all(job.brief for job in self._jobs)
        self._ahead = self._ahead + work if passes else max(0, self._ahead - work)
