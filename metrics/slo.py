"""Service level objectives and goodput: the share of requests that met all of theirs."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from metrics.percentiles import WINDOWS, Ring
from metrics.timeline import CALLER, Intervals, Timeline


@dataclass(frozen=True, slots=True)
class Objectives:
    """Upper bounds in milliseconds; None: not asked for.

    `itl_ms` bounds every gap of every choice, `tpot_ms` the mean of each choice, `ttft_ms` and `e2e_ms` the request.
    """

    ttft_ms: float | None = None
    itl_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None

    def met(self, intervals: Intervals) -> bool:
        return (
            _within(self.ttft_ms, intervals.ttft)
            and _within(self.itl_ms, max(intervals.itl, default=None))
            and _within(self.tpot_ms, max(intervals.tpot, default=None))
            and _within(self.e2e_ms, intervals.e2e)
        )

    def asked(self) -> dict[str, float]:
        values = {"ttft_ms": self.ttft_ms, "itl_ms": self.itl_ms, "tpot_ms": self.tpot_ms, "e2e_ms": self.e2e_ms}
        return {name: value for name, value in values.items() if value is not None}


def objectives(slo: Mapping[str, float | None]) -> Objectives:
    """Raises TypeError for a name that is no objective."""
    return Objectives(**slo)


def _within(bound_ms: float | None, seconds: float | None) -> bool:
    """A request without the interval (no second token, say) can't miss its bound."""
    return bound_ms is None or seconds is None or seconds * 1000 <= bound_ms


def verdict(objectives: Objectives, timeline: Timeline, intervals: Intervals) -> bool | None:
    """Whether a closed request counts as met or missed; None: not at all, the caller ended or misframed it."""
    if timeline.outcome in CALLER:
        return None
    return timeline.finished and objectives.met(intervals)


@dataclass(slots=True)
class Tally:
    requests: int = 0
    met: int = 0

    def add(self, met: bool) -> None:
        self.requests += 1
        self.met += met

    def merge(self, other: "Tally") -> None:
        self.requests += other.requests
        self.met += other.met

    @property
    def share(self) -> float | None:
        return self.met / self.requests if self.requests else None


class Goodput:
    """Tallies over the windows and since start."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._older = Tally()
        self._ring = Ring(Tally, self._older.merge, clock)

    def add(self, met: bool) -> None:
        self._ring.current().add(met)

    def tallies(self) -> dict[str, Tally]:
        """By window: `1m`, `15m`, `start`."""
        windows = {name: _merged(self._ring.last(seconds)) for name, seconds in WINDOWS.items()}
        return windows | {"start": _merged([self._older, *self._ring])}


def _merged(tallies: Iterable[Tally]) -> Tally:
    merged = Tally()
    for tally in tallies:
        merged.merge(tally)
    return merged
