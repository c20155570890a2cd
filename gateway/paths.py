"""Paths of requests: as the router takes them, and as lines of the log show them."""

import re

from gateway.asgi import Scope

FILES = "/v1/images/files"  # where finished pictures are fetched, each by a name that is a secret

MAX_LOGGED = 200  # characters

_SLASHES = re.compile("//+")


def collapsed(path: str) -> str:
    """A path as the router takes it: slashes that follow each other are one."""
    return _SLASHES.sub("/", path)


def logged(scope: Scope) -> str:
    """The path as the client wrote it, without the query, which may hold a prompt, and without a picture's name; cut
    where it is long."""
    if collapsed(scope["path"]).startswith(FILES + "/"):
        return FILES + "/…"
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    path = raw.partition(b"?")[0].decode("latin-1")
    return path if len(path) <= MAX_LOGGED else path[:MAX_LOGGED] + "…"
