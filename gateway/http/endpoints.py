"""The endpoints of an application: how handlers declare them, and which one a request is for."""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, get_args, get_origin

from litestar import Response, get, post, websocket
from litestar.handlers import BaseRouteHandler
from litestar.routes import BaseRoute, HTTPRoute, WebSocketRoute
from msgspec import Struct

from gateway.endpoint import Endpoint, Incomplete, pattern
from gateway.paths import collapsed

ENDPOINT = "endpoint"  # where a handler's declaration is, in Litestar's `opt`

Handler = Callable[..., Any]


def serves(endpoint: Endpoint) -> Callable[[Handler], BaseRouteHandler]:
    """The decorator of a controller's method that answers an endpoint. Raises Incomplete."""
    paths = list(endpoint.paths)

    def decorate(handle: Handler) -> BaseRouteHandler:
        signature = inspect.signature(handle)
        if endpoint.method == "WS":
            return websocket(paths, opt={ENDPOINT: endpoint})(handle)
        if not endpoint.answers and not _says(signature.return_annotation):
            raise endpoint.incomplete("what does it answer?")
        if endpoint.direct and list(signature.parameters) != ["self", "request"]:
            raise endpoint.incomplete("on the short way there is nothing but the request")
        return (get if endpoint.method == "GET" else post)(
            paths,
            status_code=200,
            summary=endpoint.summary,
            security=[{}] if endpoint.access == "open" else None,
            sync_to_thread=None if inspect.iscoroutinefunction(handle) else False,
            opt={ENDPOINT: endpoint},
        )(handle)

    return decorate


def _says(annotation: object) -> bool:
    """Whether an annotation tells what a handler answers with."""
    if get_origin(annotation) is Response:
        (annotation,) = get_args(annotation)
    return inspect.isclass(annotation) and issubclass(annotation, Struct)


def declared(handler: BaseRouteHandler) -> Endpoint | None:
    """What a handler declares; None for Litestar's own answer to OPTIONS. Raises Incomplete."""
    if getattr(handler, "http_methods", None) == {"OPTIONS"}:
        return None
    endpoint = handler.opt.get(ENDPOINT)
    if not isinstance(endpoint, Endpoint):
        raise Incomplete(f"{handler} declares no endpoint")
    return endpoint


class Endpoints:
    """Those of an application's routes, by path. Raises Incomplete where one declares nothing."""

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        self._by_path: dict[str, dict[str, Endpoint]] = {}
        self._patterns: list[tuple[re.Pattern[str], dict[str, Endpoint]]] = []
        self._all: list[Endpoint] = []
        for route in routes:
            methods: dict[str, Endpoint] = {}
            for handler in handlers(route):
                if (endpoint := declared(handler)) is not None:
                    methods[endpoint.method] = endpoint
                    if endpoint not in self._all:
                        self._all.append(endpoint)
            if len({(each.access, each.hidden, each.probe) for each in methods.values()}) > 1:
                raise Incomplete(f"{route.path}: its methods disagree about who may ask")
            self._by_path[route.path] = methods
            if "{" in route.path:
                self._patterns.append((pattern(route.path), methods))

    def __iter__(self) -> Iterator[Endpoint]:
        """Each once, in the order of the routes: Litestar sorts those of a controller by their handlers' names."""
        return iter(self._all)

    def find(self, method: str, path: str) -> Endpoint | None:
        """Whose path the router takes this one for. Of a method that is not there it is another of the same path's."""
        methods = self._by_path.get(path) or self._spelled(path)
        if not methods:
            return None
        return methods.get(method) or next(iter(methods.values()))

    def _spelled(self, path: str) -> dict[str, Endpoint] | None:
        plain = collapsed(path).rstrip("/")
        if plain in self._by_path:
            return self._by_path[plain]
        return next((methods for matching, methods in self._patterns if matching.fullmatch(plain)), None)


def handlers(route: BaseRoute) -> Iterable[BaseRouteHandler]:
    match route:
        case HTTPRoute():
            return route.route_handlers
        case WebSocketRoute():
            return [route.route_handler]
    return []
