"""One request's raw events on the gateway's monotonic clock; every interval is derived here and nowhere else."""

from collections.abc import Iterator
from itertools import chain, pairwise, repeat
from time import monotonic

from msgspec import Struct, field

from metrics.definitions import image, text
from metrics.metric import Counter, Histogram

LEFT = frozenset({"cancelled", "client_left"})  # outcomes of a request whose caller gave it up
FINISHED = frozenset({"stop", "length", "tool_calls"})  # outcomes of a request that got what it asked for
CALLER = frozenset(  # outcomes that the caller chose or caused: no word on how well the server did
    {"cancelled", "invalid_request", "context_length_exceeded", "model_not_found", "client_left"}
)


class Timeline(Struct):
    """Stamps are seconds of `time.monotonic()`; None: it never came to that."""

    arrival: float = field(default_factory=monotonic)
    queued: float | None = None  # a slot was asked for; None: at arrival
    slot: float | None = None  # admission granted a slot
    opened: float | None = None  # handed to the backend
    accepted: float | None = None
    tokens: list[tuple[float, int, int]] = []  # (received, choice, number of tokens)
    ended: float | None = None  # the terminal event was received
    closed: float | None = None  # the last byte was written, or the client left
    writing: float = 0.0  # seconds spent waiting for the client to take bytes
    writing_after_end: float = 0.0  # those of them after `ended`: the rest overlaps the worker's span
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    worker_prepare: float = 0.0
    worker_encode: float = 0.0
    worker_queue: float = 0.0
    worker_prefill: float = 0.0
    worker_decode: float = 0.0
    worker_total: float = 0.0
    media_seconds: float = 0.0  # of the audio or video that was transcribed
    images: int = 0  # that were asked for
    pictures: int = 0  # those of them that are finished
    image_steps: int = 0  # denoising steps done, of all of them
    first_preview: float | None = None  # received
    outcome: str = ""  # a finish reason, or an error code
    counts: dict[Counter, float] = {}  # what else its closing adds to counters of its kind
    samples: list[tuple[Histogram, float]] = []  # and to its histograms

    def count(self, metric: Counter, amount: float = 1) -> None:
        self.counts[metric] = self.counts.get(metric, 0) + amount

    def sample(self, metric: Histogram, value: float) -> None:
        self.samples.append((metric, value))

    def wrote(self, since: float) -> None:
        """Bytes handed to the client at `since` are taken now."""
        now = monotonic()
        self.writing += now - since
        if self.ended is not None:
            self.writing_after_end += max(0.0, now - max(since, self.ended))

    @property
    def finished(self) -> bool:
        return self.outcome in FINISHED

    @property
    def images_given_up(self) -> int:
        """Images that were not finished when the caller gave the request up."""
        return self.images - self.pictures if self.outcome in LEFT else 0

    @property
    def generated(self) -> int:
        """Tokens generated: the worker's own count, or what had come where the request did not finish."""
        return self.completion_tokens or sum(count for _, _, count in self.tokens)

    def totals(self) -> Iterator[tuple[Counter, float]]:
        """What a request that had a slot adds to the counters of its kind: those of another kind mean nothing."""
        yield text.PROMPT_TOKENS, self.prompt_tokens
        yield text.CACHED_TOKENS, self.cached_tokens
        yield text.GENERATED_TOKENS, self.generated
        yield image.IMAGES, self.pictures
        yield image.IMAGE_STEPS, self.image_steps
        yield image.IMAGES_CANCELLED, self.images_given_up
        yield from self.counts.items()


class Phases(Struct, frozen=True):
    """Where the time of one answer went, for the caller: seconds that add up to `total` but for the gateway's own."""

    queue: float  # in the gateway's queue and in the engine's
    prepare: float
    compute: float
    total: float  # arrival -> now
    encode: float = 0.0  # of the images that a chat shows, with the wait for it


def phases(timeline: Timeline) -> Phases:
    """To be called when the terminal event is in hand."""
    prepare, encode, queue = timeline.worker_prepare, timeline.worker_encode, timeline.worker_queue
    return Phases(
        queue=(_admission_wait(timeline) or 0.0) + queue,
        prepare=prepare,
        compute=max(0.0, timeline.worker_total - prepare - encode - queue),
        total=(timeline.ended or monotonic()) - timeline.arrival,
        encode=encode,
    )


class Intervals(Struct, frozen=True):
    """What one closed request adds to the histograms of the same name, in seconds; None or empty: no sample."""

    admission_wait: float | None = None
    queue: float | None = None
    prepare: float | None = None
    encode: float | None = None
    batch_wait: float | None = None
    ttft: float | None = None
    itl: tuple[float, ...] = ()
    tpot: tuple[float, ...] = ()  # one for each choice of at least two tokens
    prefill: float | None = None
    decode: float | None = None
    e2e: float | None = None
    overhead: float | None = None
    rtf: float | None = None  # a ratio, not seconds
    first_preview: float | None = None

    def samples(self) -> Iterator[tuple[str, float | tuple[float, ...]]]:
        """(key of the histogram, its sample or samples), fields without one left out."""
        for name in _FIELDS:
            value: tuple[float, ...] | float | None = getattr(self, name)
            if value is not None and value != ():
                yield name, value


_FIELDS = Intervals.__struct_fields__


def intervals(timeline: Timeline) -> Intervals:
    """Derive the samples of a closed request. A request that never had a slot has none.

    Intervals that were measured in full are kept whatever the outcome (admission wait, TTFT, ITL); those that the
    worker reports with its terminal event, and those that only a whole answer has, are of finished requests.
    """
    if timeline.slot is None:
        return Intervals()
    finished = timeline.finished
    stamps = _by_choice(timeline.tokens)
    several = any(count > 1 for _, count in map(_extent, stamps))
    worker = finished and timeline.worker_total > 0
    handed = (timeline.opened or timeline.slot) - timeline.arrival
    return Intervals(
        admission_wait=_admission_wait(timeline),
        queue=handed + timeline.worker_prepare + timeline.worker_encode + timeline.worker_queue if worker else None,
        prepare=timeline.worker_prepare if worker else None,
        encode=timeline.worker_encode or None if worker else None,
        batch_wait=timeline.worker_queue if worker else None,
        ttft=min(events[0][0] for events in stamps) - timeline.arrival if stamps else None,
        itl=tuple(chain.from_iterable(map(_gaps, stamps))),
        tpot=tuple(span / (count - 1) for span, count in map(_extent, stamps) if count > 1) if finished else (),
        prefill=timeline.worker_prefill if worker and stamps else None,
        decode=timeline.worker_decode if worker and several else None,
        e2e=_e2e(timeline) if timeline.outcome not in CALLER else None,
        overhead=_overhead(timeline) if worker else None,
        rtf=_rtf(timeline) if worker else None,
        first_preview=timeline.first_preview - timeline.arrival if timeline.first_preview is not None else None,
    )


Events = list[tuple[float, int]]  # (received, number of tokens) of one choice, in order


def _by_choice(tokens: list[tuple[float, int, int]]) -> list[Events]:
    """Each choice's arrivals of generated tokens; deltas that carry text alone are no tokens."""
    choices: dict[int, Events] = {}
    for received, choice, count in tokens:
        if count > 0:
            choices.setdefault(choice, []).append((received, count))
    return list(choices.values())


def _gaps(events: Events) -> list[float]:
    """The gap before each token, tokens of the first event excepted: nothing was seen between them."""
    if all(count == 1 for _, count in events):
        return [later - earlier for (earlier, _), (later, _) in pairwise(events)]
    return [
        gap for (earlier, _), (later, count) in pairwise(events) for gap in repeat((later - earlier) / count, count)
    ]


def _extent(events: Events) -> tuple[float, int]:
    """(first token -> last token, number of tokens)."""
    return events[-1][0] - events[0][0], sum(count for _, count in events)


def _admission_wait(timeline: Timeline) -> float | None:
    if timeline.slot is None:
        return None
    return timeline.slot - (timeline.arrival if timeline.queued is None else timeline.queued)


def _e2e(timeline: Timeline) -> float | None:
    return timeline.closed - timeline.arrival if timeline.closed is not None else None


def _rtf(timeline: Timeline) -> float | None:
    if not timeline.media_seconds:
        return None
    return (timeline.worker_total - timeline.worker_queue) / timeline.media_seconds


def _overhead(timeline: Timeline) -> float | None:
    e2e, wait = _e2e(timeline), _admission_wait(timeline)
    if e2e is None or wait is None:
        return None
    # The worker's span is a duration on its own clock: rounding may put it a hair beyond ours.
    return max(0.0, e2e - wait - timeline.worker_total - timeline.writing_after_end)
