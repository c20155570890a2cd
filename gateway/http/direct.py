"""The short way to the handlers of short requests."""

import logging
from collections.abc import Awaitable, Callable

from litestar import Litestar, Request
from litestar.datastructures import State

from gateway.asgi import App, Receive, Scope, Send
from gateway.errors import ApiError, internal_error
from gateway.http.endpoints import declared, handlers
from gateway.paths import logged

logger = logging.getLogger("gateway")

Handler = Callable[[Request[object, object, State]], Awaitable[App]]


class Direct:
    """Calls the handlers of endpoints that are `direct` itself; all else goes through the application's router.

    Routing, injection and signatures, whose result is always the same here, cost such a request more than admission
    and framing together. An ApiError is left to the caller.
    """

    def __init__(self, app: Litestar, router: App) -> None:
        self._router = router
        self._handlers: dict[tuple[str, str], Handler] = {
            (endpoint.method, route.path): handler.fn
            for route in app.routes
            for handler in handlers(route)
            if (endpoint := declared(handler)) is not None and endpoint.direct
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handler = self._handlers.get((scope.get("method", ""), scope["path"]))
        if handler is None:
            await self._router(scope, receive, send)
            return
        request: Request[object, object, State] = Request(scope, receive, send)  # type: ignore[arg-type]
        try:
            response = await handler(request)
            await response(scope, receive, send)
        except ApiError:
            raise
        except Exception as error:
            request_id = scope["state"].get("request_id", "")
            logger.exception("%s %s failed (%s)", scope["method"], logged(scope), request_id)
            raise internal_error() from error
