"""One request's raw events on the gateway's monotonic clock; every interval is derived here and nowhere else."""

from dataclasses import dataclass, field
from time import monotonic


@dataclass(slots=True)
class Timeline:
    """Stamps are seconds of `time.monotonic()`; None: it never came to that."""

    arrival: float = field(default_factory=monotonic)
    slot: float | None = None  # admission granted a slot
    opened: float | None = None  # handed to the backend
    accepted: float | None = None
    tokens: list[tuple[float, int, int]] = field(default_factory=list)  # (received, choice, number of tokens)
    ended: float | None = None  # the terminal event was received
    closed: float | None = None  # the last byte was written, or the client left
    writing: float = 0.0  # seconds spent waiting for the client to take bytes
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    worker_prepare: float = 0.0
    worker_queue: float = 0.0
    worker_prefill: float = 0.0
    worker_decode: float = 0.0
    worker_total: float = 0.0
    outcome: str = ""  # a finish reason, or an error code
