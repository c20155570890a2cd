"""Paths of requests: as the router takes them, and as lines of the log show them."""

import re

from gateway.asgi import Scope
from gateway.endpoint import Endpoint

MAX_LOGGED = 200  # characters

_SLASHES = re.compile("//+")


def collapsed(path: str) -> str:
    """A path as the router takes it: slashes that follow each other are one."""
    return _SLASHES.sub("/", path)


def logged(scope: Scope) -> str:
    """The path as the client wrote it, without the query, which may hold a prompt, and without what its endpoint has
    for a secret; cut where it is long."""
    endpoint: Endpoint | None = scope["state"].get("endpoint")
    if endpoint is not None and endpoint.hidden is not None:
        return endpoint.shown_path
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    path = raw.partition(b"?")[0].decode("latin-1")
    return path if len(path) <= MAX_LOGGED else path[:MAX_LOGGED] + "…"
