"""A gateway over fake image models, and what tests ask of it."""

import base64
import io
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from PIL import Image

from gateway.config.environment import digest
from gateway.config.settings import KeySettings, ServerSettings, Settings
from tests.fake_images import fake_image_model
from tests.integration.conftest import wait_until
from tests.servers import Gateway, gateway_thread

KEY = "sk-painting"


@contextmanager
def image_gateway(spool: Path, **server: Any) -> Iterator[Gateway]:
    """`painter`: eight images at once, behind a key. `narrow`: two."""
    settings = Settings(
        server=ServerSettings(port=0, spool_dir=str(spool), **server),
        keys=[KeySettings(name="test", sha256=digest(KEY))],
        models=[
            fake_image_model("painter", aliases=["gpt-image-1"]),
            fake_image_model("narrow", images=2),
        ],
    )
    with gateway_thread(settings) as running:
        yield running


def opened(b64_json: str | None) -> Image.Image:
    """The picture of an answer."""
    assert b64_json is not None
    return Image.open(io.BytesIO(base64.b64decode(b64_json, validate=True)))


def png(size: tuple[int, int] = (64, 64), colour: Any = (200, 30, 30), mode: str = "RGB") -> bytes:
    file = io.BytesIO()
    Image.new(mode, size, colour).save(file, "png")
    return file.getvalue()


def leave(running: Gateway, request: httpx.Request, when: Callable[[], bool]) -> None:
    """Send a request, and close the connection as soon as that holds."""
    request.read()
    lines = [f"{request.method} {request.url.raw_path.decode()} HTTP/1.1", f"authorization: Bearer {KEY}"]
    lines += [f"{name}: {value}" for name, value in request.headers.items()]
    with socket.create_connection(running.address, timeout=30) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + request.content)
        wait_until(when)


def spooled(running: Gateway) -> list[Path]:
    return [
        path for path in Path(running.settings.server.spool_dir).rglob("*") if path.is_file() and path.name != "lock"
    ]
