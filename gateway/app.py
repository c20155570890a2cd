"""The HTTP application: routes and what they need, behind the middleware."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

from litestar import Controller, Litestar, Request
from litestar.datastructures import State
from litestar.di import Provide
from litestar.types import ASGIApp

from gateway.api.metrics import MetricsController
from gateway.api.openapi import openapi_config
from gateway.api.system import SystemController
from gateway.asgi import App
from gateway.config.settings import Settings
from gateway.errors import exception_handlers
from gateway.http import middleware
from gateway.http.auth import Principal
from gateway.http.direct import Direct
from gateway.http.endpoints import Endpoints
from gateway.requests.dispatch import Dispatcher
from gateway.requests.fleet import Fleet
from gateway.uploads.gallery import Gallery
from gateway.uploads.images import ImageReader
from gateway.uploads.spool import Spool
from metrics.registry import Registry
from pipelines.kinds import KINDS, referenced

# What the workers get once every request has ended or was given up.
WORKER_DRAIN_S = 5.0


def create_app(settings: Settings, fleet: Fleet, registry: Registry, *, started: bool = False) -> Litestar:
    """The application over a fleet, which it starts (unless that was done) and drains.

    Handlers may ask for `settings`, `fleet`, `registry`, `dispatcher`, `spool`, `gallery` and `principal` by name; the
    id of the request, its arrival and its endpoint are in `scope["state"]`. What the routes declare is in
    `app.state.endpoints`. Raises Incomplete where one of them does not.
    """
    spool = Spool(Path(settings.server.spool_dir), settings.server.spool_max_bytes)
    gallery = Gallery(spool, settings.server)
    dispatcher = Dispatcher(registry, fleet)
    images = ImageReader(settings.server)

    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        spool.open()
        try:
            if not started:
                await fleet.start()
            yield
        finally:
            await fleet.drain(WORKER_DRAIN_S)
            gallery.close()
            spool.close()

    app = Litestar(
        route_handlers=controllers(),
        dependencies={
            "settings": Provide(lambda: settings, sync_to_thread=False),
            "fleet": Provide(lambda: fleet, sync_to_thread=False),
            "registry": Provide(lambda: registry, sync_to_thread=False),
            "dispatcher": Provide(lambda: dispatcher, sync_to_thread=False),
            "gallery": Provide(lambda: gallery, sync_to_thread=False),
            "spool": Provide(lambda: spool, sync_to_thread=False),
            "principal": Provide(_principal, sync_to_thread=False),
        },
        state=State({"dispatcher": dispatcher, "images": images}),
        lifespan=[lifespan],
        exception_handlers=exception_handlers(),
        openapi_config=openapi_config(),
        logging_config=None,
        request_max_body_size=None,  # the middleware's limit holds for every route, known or not
    )
    # Around the router, not below it: Litestar's own middleware does not see what no route matches.
    router = Direct(app, cast(App, app.asgi_handler))
    endpoints = Endpoints(app.routes)
    app.state["endpoints"] = endpoints
    app.asgi_handler = cast(ASGIApp, middleware.wrap(router, endpoints, settings))
    return app


def controllers() -> list[type[Controller]]:
    """Those of every kind of model, on its card, behind what needs no model."""
    of_kinds = (endpoint for kind in KINDS.values() for endpoint in kind.endpoints)
    return [SystemController, MetricsController, *map(referenced, of_kinds)]


def _principal(request: Request[object, object, State]) -> Principal:
    principal: Principal = request.scope["state"]["principal"]
    return principal
