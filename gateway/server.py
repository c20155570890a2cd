"""uvicorn, set up for this gateway."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from litestar import Litestar

from gateway.protocol import protocol
from gateway.settings import ServerSettings


class Server(uvicorn.Server):
    """Leaves signals to the process: uvicorn's own handler would end it by the signal, after a clean drain too."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def http_server(app: Litestar, settings: ServerSettings) -> Server:
    """For `serve(sockets=[…])`; `should_exit` begins the drain, `force_exit` cuts it short."""
    config = uvicorn.Config(
        app,
        http=protocol(settings.header_timeout_s),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=math.ceil(settings.keep_alive_s),
        timeout_graceful_shutdown=math.ceil(settings.drain_s),
    )
    return Server(config)
