"""Requests and answers as bytes, of a gateway that wants a key."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from gateway.config.settings import Settings
from gateway.http.protocol import BoundedProtocol
from gateway.requests.fleet import Fleet
from metrics.registry import Registry
from tests.gateway.idle_fleet import KEY, IdleFleet, make_settings
from tests.servers import Gateway, gateway

CHAT = "/v1/chat/completions"


def idle_fleet(settings: Settings, registry: Registry) -> Fleet:
    return IdleFleet(settings, registry)


@asynccontextmanager
async def keyed(tmp_path: Path, **server: object) -> AsyncIterator[Gateway]:
    """A gateway that wants a key, and waits for bodies far longer than it lingers."""
    async with gateway(make_settings(tmp_path, key=KEY, port=0, **server), idle_fleet) as running:
        yield running


def request(method: str, path: str, *headers: str) -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "host: localhost", *headers, "", ""]).encode()


def only_connection(running: Gateway) -> BoundedProtocol:
    """The server's end of the one that is open."""
    (found,) = running.server.server_state.connections
    assert isinstance(found, BoundedProtocol)
    return found


def statuses_and_codes(received: bytes) -> list[tuple[int, str | None]]:
    """Of each answer."""
    found = []
    for part in received.split(b"HTTP/1.1 ")[1:]:
        head, _, body = part.partition(b"\r\n\r\n")
        said = json.loads(body)
        found.append((int(head.split()[0]), said["error"]["code"] if "error" in said else None))
    return found
