"""Closed requests with round numbers."""

from collections.abc import Sequence
from typing import Any

from metrics.timeline import Timeline

Tokens = Sequence[tuple[float, int, int]]
STEADY: Tokens = [(10.5, 0, 1), (10.6, 0, 1), (10.8, 0, 1)]


def timeline(outcome: str = "stop", tokens: Tokens = STEADY, **fields: Any) -> Timeline:
    """Arrived at 10.0, slot asked for at 10.01 and had at 10.05, opened at 10.06, ended at 10.9, closed at 10.95."""
    finished = outcome in ("stop", "length")
    stamps: dict[str, Any] = {
        "arrival": 10.0,
        "queued": 10.01,
        "slot": 10.05,
        "opened": 10.06,
        "accepted": 10.1,
        "ended": 10.9,
        "closed": 10.95,
        "prompt_tokens": 7,
        "completion_tokens": sum(count for _, _, count in tokens) if finished else 0,
        "worker_prepare": 0.03 if finished else 0.0,
        "worker_queue": 0.02 if finished else 0.0,
        "worker_prefill": 0.38 if finished else 0.0,
        "worker_decode": 0.3 if finished else 0.0,
        "worker_total": 0.8 if finished else 0.0,
        "media_seconds": 10.0,
    }
    return Timeline(tokens=list(tokens), outcome=outcome, **(stamps | fields))


def rejected(outcome: str = "overloaded") -> Timeline:
    return Timeline(arrival=10.0, queued=10.01, closed=10.02, outcome=outcome)
