"""What is said where there is no slot, or where the worker is lost: to requests and to live streams alike."""

from collections.abc import Awaitable

from gateway import errors
from gateway.errors import ApiError
from gateway.requests.admission import Lease, Overloaded, QueueDeadline, Unavailable
from gateway.requests.routing import Route
from metrics.registry import Registry
from pipelines.messages.frames import Failed


async def granted(route: Route, slots: Awaitable[Lease], registry: Registry) -> Lease:
    """`slots` of a route, whose model is loaded first where it is not. Raises ApiError (429, 503, 504), once it is
    counted."""
    route.wake()
    try:
        return await slots
    except Overloaded as refusal:
        error = errors.overloaded(refusal.retry_after)
    except QueueDeadline:
        error = errors.deadline_exceeded("The deadline passed while the request was waiting for a slot.")
    except Unavailable as refusal:
        error = errors.model_unavailable(route.name, refusal.reason, retry_after=refusal.retry_after)
    registry.rejected(route.name, route.kind, error.code or "")
    raise error


def failed(route: Route, failure: Failed, *, began: bool) -> ApiError:
    """A failure that work ended with, as the caller sees it. `began`: it had said something."""
    if failure.code == "worker_lost":
        return errors.worker_lost(began=began, retry_after=route.admission.restart_seconds)
    return errors.backend_error(failure)
