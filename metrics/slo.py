"""Service level objectives and goodput: the share of requests that met all of theirs."""

from collections.abc import Callable, Mapping
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

    @property
    def share(self) -> float | None:
        return self.met / self.requests if self.requests else None


class Goodput:
    """Tallies since start and over the windows."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.start = Tally()
        self._ring = Ring(Tally, clock)

    def add(self, met: bool) -> None:
        self.start.add(met)
        self._ring.current().add(met)

    def window(self, seconds: float) -> Tally:
        slots = list(self._ring.last(seconds))
        return Tally(sum(slot.requests for slot in slots), sum(slot.met for slot in slots))

    def tallies(self) -> dict[str, Tally]:
        """By window: `1m`, `15m`, `start`."""
        return {name: self.window(seconds) for name, seconds in WINDOWS.items()} | {"start": self.start}
