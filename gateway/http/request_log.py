"""One line for each request, once it has ended: who asked what of which model, how it went, how much it was."""

import logging
from time import monotonic

from msgspec import Struct

from gateway.asgi import Scope
from gateway.endpoint import Endpoint
from gateway.http.auth import Principal
from gateway.paths import logged
from metrics.timeline import Timeline
from pipelines.logs import FIELDS

logger = logging.getLogger("gateway.request")

_WORK = "work"
_REFUSED = "refused"


class Work(Struct):
    """What a request made a model do. Kept in the scope's state by who runs it."""

    model: str  # by its own name, whatever the client called it
    timeline: Timeline
    heard: float | None = None  # seconds of audio, of a live stream


def worked(scope: Scope, work: Work) -> None:
    """To be told before the request ends; what is in `work` by then is logged."""
    scope["state"][_WORK] = work


def refused(scope: Scope, status: int) -> None:
    """The application sends no answer: the server below it has given one, or nobody is there to read it."""
    scope["state"][_REFUSED] = status


def log_request(scope: Scope, status: int) -> None:
    """Nothing that a client wrote is in the line but its path and a sane request id; never the query, which may hold a
    prompt."""
    state = scope["state"]
    endpoint: Endpoint | None = state.get("endpoint")
    level = logging.DEBUG if endpoint is not None and endpoint.probe else logging.INFO
    if not logger.isEnabledFor(level):
        return
    principal: Principal | None = state.get("principal")
    line: dict[str, object] = {"id": state["request_id"], "status": state.get(_REFUSED, status)}
    if principal is not None and principal.name:
        line["key"] = principal.name
    work: Work | None = state.get(_WORK)
    if work is not None:
        line["model"] = work.model
        line |= _units(work)
        if work.timeline.outcome:
            line["outcome"] = work.timeline.outcome
    line["ms"] = round((monotonic() - state["arrival"]) * 1e3, 1)
    # Not through `logger.log`, which looks for the line of its caller.
    asked = (scope.get("method", "WS"), logged(scope))
    record = logging.LogRecord(logger.name, level, "", 0, "%s %s", asked, None)
    setattr(record, FIELDS, line)
    logger.handle(record)


def _units(work: Work) -> dict[str, object]:
    timeline = work.timeline
    found: dict[str, object] = {
        "prompt_tokens": timeline.prompt_tokens,
        "completion_tokens": timeline.generated,
        "seconds": round(timeline.media_seconds if work.heard is None else work.heard, 2),
        "images": timeline.pictures,
    }
    return {name: amount for name, amount in found.items() if amount}
