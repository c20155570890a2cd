"""The steps that encode images: for sequences that wait for them, before those are scheduled."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from time import monotonic
from typing import Generic, TypeVar

from metrics.definitions import text as metrics
from metrics.metric import CounterSeries, GaugeSeries
from models.errors import ModelLoadError
from models.vision.image import PreparedImage, Tower
from pipelines.base import StepFailed, StepResult, Ticket, Work
from pipelines.messages.frames import Failed, StepReport
from pipelines.text.vision.encoder_cache import EncoderCache
from pipelines.text.vision.prompt_images import ImageKey, PromptImages
from pipelines.text.vision.step_pixels import StepPixels

log = logging.getLogger(__name__)

IMAGE_PATIENCE_S = 0.5  # for each image that it lacks a request lets others pass that came so much later
BATCH_PATIENCE_S = 10.0  # and one of the batch class, so that it never starves

UNAVAILABLE = "The part of the model that looks at images can't be loaded; the server's log says why."


W = TypeVar("W", bound=Work)


@dataclass(slots=True)
class _Looking(Generic[W]):
    """The sequences of a prompt that waits for its images."""

    sequences: Rows[W]
    images: PromptImages
    claimed: bool = False  # whether there is room for what it lacks

    @property
    def ticket(self) -> Ticket:
        return self.sequences[0].ticket

    @property
    def due(self) -> float:
        patience = len(self.images.missing) * IMAGE_PATIENCE_S
        return self.ticket.received + patience + (BATCH_PATIENCE_S if self.ticket.priority == "batch" else 0.0)


@dataclass(frozen=True, slots=True)
class _Held:
    """What a request holds of the cache, until it ends."""

    tenant: str
    keys: Rows[ImageKey]


@dataclass(slots=True)
class _Totals:
    """Over this worker's life."""

    images: int = 0
    tokens: int = 0
    prepare_seconds: float = 0.0


class ImageEncoder(Generic[W]):
    """Owns the tower and the encoded images. A request has its images from `ready` until it is released.

    An image is encoded once, however many requests of a tenant show it at the same time, and not at all where it is
    still there. Tenants take turns; within a tenant those go first that came first and lack little.
    """

    def __init__(
        self,
        load_tower: Callable[[], Tower],
        *,
        row_bytes: int,
        cache_bytes: int,
        max_pixels: int | None = None,
    ) -> None:
        """`row_bytes`: of one encoded row, as long as none has been seen. `max_pixels`: of a step of several images."""
        self._load_tower = load_tower
        self._tower: Tower | None = None
        self._broken: ModelLoadError | None = None  # why there is no tower, nor will be
        self._row_bytes = row_bytes
        self._cache = EncoderCache(cache_bytes)
        self._step_pixels = StepPixels(max_pixels)
        self._looking: dict[str, _Looking[W]] = {}  # by request
        self._held: dict[str, _Held] = {}  # by request
        self._totals = _Totals()

    def load(self) -> Tower:
        """The tower; loaded at the first call. Raises ModelLoadError, the same one each time."""
        if self._broken is not None:
            raise self._broken
        if self._tower is None:
            try:
                self._tower = self._load_tower()
            except ModelLoadError as error:
                self._broken = error
                log.error("the tower can't be loaded, so no image can be looked at: %s", error)
                raise
        return self._tower

    # --- requests -----------------------------------------------------------------------------------------------------

    @property
    def num_waiting(self) -> int:
        """Sequences whose images are to be encoded."""
        return sum(len(each.sequences) for each in self._looking.values())

    def add(self, sequences: Rows[W], images: PromptImages) -> None:
        """Those of one request, which shows these."""
        looking = _Looking(sequences, images)
        self._looking[looking.ticket.id] = looking
        self._totals.images += len(images.keys)
        self._totals.tokens += images.tokens
        self._totals.prepare_seconds += images.seconds

    def ready(self) -> Iterator[W]:
        """The sequences whose images are all there: they can be scheduled."""
        if not self._looking:
            return
        for looking in self._in_turn():
            if not looking.claimed and not self._claim(looking):
                break  # nobody takes the room that it waits for
            if self._look(looking):
                del self._looking[looking.ticket.id]
                yield from looking.sequences

    def release(self, request_id: str) -> None:
        """The request has ended, or is given up. Idempotent; unknown ids are ignored."""
        self._looking.pop(request_id, None)
        held = self._held.pop(request_id, None)
        if held is not None:
            self._cache.release(held.keys)

    def _in_turn(self) -> list[_Looking[W]]:
        """The tenant is next that has the fewest requests with images, those that run among them; then who is due."""
        turns = Counter(held.tenant for id, held in self._held.items() if id not in self._looking)
        ranked: list[tuple[int, _Looking[W]]] = []
        for looking in sorted(self._looking.values(), key=lambda each: each.due):
            turns[looking.ticket.tenant] += 1
            ranked.append((turns[looking.ticket.tenant], looking))
        return [looking for _, looking in sorted(ranked, key=lambda each: each[0])]

    def _claim(self, looking: _Looking[W]) -> bool:
        """Room for its images; False where it has to wait until others have ended."""
        missing = looking.images.missing
        looking.claimed = self._cache.claim({key: len(each.rows) * self._row_bytes for key, each in missing.items()})
        if looking.claimed:
            self._held[looking.ticket.id] = _Held(looking.ticket.tenant, looking.images.keys)
        return looking.claimed

    def _look(self, looking: _Looking[W]) -> bool:
        """Take what is there; whether that is all."""
        for key in [*looking.images.missing]:
            encoded = self._cache.get(key)
            if encoded is not None:
                looking.images.put(key, encoded)
        return not looking.images.missing

    # --- steps --------------------------------------------------------------------------------------------------------

    def due(self, only: str | None = None) -> bool:
        """Whether there is something to encode; with `only`, for that request."""
        return any(looking.claimed for looking in self._looking.values() if only in (None, looking.ticket.id))

    def step(self, only: str | None = None) -> StepResult:
        """Encode the next images. Raises StepFailed."""
        batch = self._next(only)
        images = [*batch.images.values()]
        try:
            tower = self.load()
            began = monotonic()
            encoded = tower.encode(images)
            for image, rows in zip(images, encoded, strict=True):
                if len(rows.rows) != len(image.rows):
                    raise ValueError(f"the tower gave {len(rows.rows)} rows for an image of {len(image.rows)}")
        except ModelLoadError:
            return self._give_up()
        except Exception as cause:
            raise StepFailed(batch.request_ids, cause) from cause
        seconds = monotonic() - began
        self._step_pixels.observe(batch.pixels, seconds)
        for key, rows in zip(batch.images, encoded, strict=True):
            self._row_bytes = rows.nbytes // max(1, len(rows.rows))
            self._cache.put(key, rows)
        return StepResult(report=StepReport("encode", len(images), batch.tokens, seconds))

    def _next(self, only: str | None) -> "_Batch":
        """At least one image, if any is missing; more as long as they are not too many."""
        batch = _Batch()
        for looking in self._in_turn():
            if looking.claimed and only in (None, looking.ticket.id):
                for key, image in looking.images.missing.items():
                    fits = not batch.images or batch.pixels + image.pixels <= self._step_pixels.most
                    if key in batch.images or (fits and self._cache.get(key) is None):
                        batch.images[key] = image
                        batch.request_ids[looking.ticket.id] = None
        return batch

    def _give_up(self) -> StepResult:
        """The end of all requests that show images: there is no tower."""
        failed = [Failed(id, "model_unavailable", UNAVAILABLE) for id in self._looking]
        for event in failed:
            self.release(event.id)
        return StepResult(failed)

    # --- counters -----------------------------------------------------------------------------------------------------

    def counters(self) -> dict[CounterSeries, float]:
        return {
            metrics.VISION_IMAGES.series(): self._totals.images,
            metrics.VISION_TOKENS.series(): self._totals.tokens,
            metrics.VISION_PREPARE_SECONDS.series(): self._totals.prepare_seconds,
            metrics.ENCODER_CACHE_QUERIES.series(): self._cache.queries,
            metrics.ENCODER_CACHE_HITS.series(): self._cache.hits,
        }

    def gauges(self) -> dict[GaugeSeries, float]:
        return {metrics.ENCODER_CACHE_BYTES.series(): self._cache.nbytes}

    def check(self) -> None:
        """Verify, when no request is left, that none holds an image. Raises RuntimeError."""
        if self._held or self._looking:
            raise RuntimeError(f"{len(self._held)} requests that have ended hold images")
        self._cache.check()


@dataclass(slots=True)
class _Batch:
    """The images of one step."""

    images: dict[ImageKey, PreparedImage] = field(default_factory=dict)
    request_ids: dict[str, None] = field(default_factory=dict)  # that show them

    @property
    def pixels(self) -> int:
        return sum(image.pixels for image in self.images.values())

    @property
    def tokens(self) -> int:
        return sum(len(image.tokens) for image in self.images.values())
