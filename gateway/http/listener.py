"""The address that the gateway is reached at."""

import socket

from gateway.config.settings import ServerSettings

BACKLOG = 2048  # connections that wait to be accepted


def bind(server: ServerSettings) -> socket.socket:
    """Take the address before anything is loaded. Who connects from now on waits for it. Raises OSError."""
    host = server.host.strip("[]")
    family, kind, number, _, address = socket.getaddrinfo(
        host, server.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, number)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def reachable(host: str) -> str:
    """An address of this machine that a listener on `host` answers at: of any address, one is loopback."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104


def url(listener: socket.socket) -> str:
    """Where a client on this machine finds it."""
    host, port = listener.getsockname()[:2]
    host = reachable(host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
