"""The shapes of ASGI 3, as the server in front of the router speaks it."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

# The specification's dictionaries: their keys depend on `type`.
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

Headers = list[tuple[bytes, bytes]]


async def disconnected(receive: Receive) -> None:
    """Returns once the client has left. What it sends until then is dropped."""
    while not (await receive())["type"].endswith(".disconnect"):
        pass


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first header of a name, which is in lower case."""
    value: bytes
    for key, value in scope["headers"]:
        if key == name:
            return value
    return None
