"""uvicorn, set up for this gateway."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from litestar import Litestar

from gateway.config.settings import ServerSettings
from gateway.http.listener import BACKLOG
from gateway.http.protocol import protocol

MAX_WS_MESSAGE = 16 * 2**20  # bytes: OpenAI's bound on one append of audio is 15 MiB


class Server(uvicorn.Server):
    """Leaves signals to the process: uvicorn's own handler would end it by the signal, after a clean drain too."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def http_server(app: Litestar, settings: ServerSettings) -> Server:
    """For `serve(sockets=[…])`; `should_exit` begins the drain, `force_exit` cuts it short."""
    config = uvicorn.Config(
        app,
        http=protocol(settings.header_timeout_s, settings.body_timeout_s),
        ws="websockets-sansio",
        ws_max_size=MAX_WS_MESSAGE,
        ws_ping_interval=20.0,
        ws_ping_timeout=20.0,
        lifespan="on",
        proxy_headers=False,  # nothing here depends on the client's address
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=math.ceil(settings.keep_alive_s),
        timeout_graceful_shutdown=math.ceil(settings.drain_s),
    )
    return Server(config)
