"""`gateway ready`: whether the gateway of this configuration serves, for a container's health check."""

import http.client

from gateway.config.settings import ServerSettings
from gateway.http.listener import reachable


def not_ready(server: ServerSettings, timeout_s: float) -> str | None:
    """Why not, for people; None: its `/ready` is a 200."""
    host = server.host.strip("[]")
    connection = http.client.HTTPConnection(reachable(host), server.port, timeout=timeout_s)
    try:
        connection.request("GET", "/ready")
        answer = connection.getresponse()
        body = answer.read(1 << 16).decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        return f"{host}:{server.port} does not answer: {error}"
    finally:
        connection.close()
    return None if answer.status == 200 else f"{host}:{server.port} answers {answer.status}: {body}"
