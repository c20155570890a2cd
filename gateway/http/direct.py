"""The short way to the handlers of short requests."""

import logging
from collections.abc import Awaitable, Callable

from litestar import Litestar, Request
from litestar.datastructures import State
from litestar.routes import HTTPRoute

from gateway.asgi import App, Receive, Scope, Send
from gateway.errors import ApiError, internal_error
from gateway.paths import logged

logger = logging.getLogger("gateway")

# `@post(…, direct=True)`: the handler takes the request alone, and returns an ASGI response.
MARK = "direct"

Handler = Callable[[Request[object, object, State]], Awaitable[App]]


class Direct:
    """Calls the marked handlers of an application itself; all else goes through its router.

    Routing, injection and signatures, whose result is always the same here, cost such a request more than admission
    and framing together. An ApiError is left to the caller.
    """

    def __init__(self, app: Litestar, router: App) -> None:
        self._router = router
        self._handlers: dict[tuple[str, str], Handler] = {
            (method, route.path): handler.fn
            for route in app.routes
            if isinstance(route, HTTPRoute)
            for handler in route.route_handlers
            if handler.opt.get(MARK)
            for method in handler.http_methods
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
