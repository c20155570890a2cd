"""Live streams before their model is there."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from gateway.backends.base import State
from gateway.errors import ApiError
from gateway.live import LiveCall
from gateway.routing import Route
from metrics.registry import Registry
from metrics.timeline import Timeline
from pipelines.audio.messages import StreamRequest
from tests.gateway.desk import counter
from tests.gateway.scripted import SETTINGS, ScriptedBackend
from tests.live import until

HANDSHAKE = (
    "GET /v1/audio/stream HTTP/1.1\r\nHost: {0}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def loading() -> ScriptedBackend:
    backend = ScriptedBackend(slots=1)
    backend.state = State.LOADING
    return backend


async def test_live_streams_wait_for_the_load_too() -> None:
    backend = loading()
    woken: list[bool] = []
    settings = msgspec.structs.replace(SETTINGS, kind="audio")
    route = Route("m", "audio", (), settings, [backend], Registry(), lambda: woken.append(True))
    calls = [LiveCall(str(n), route, StreamRequest(), "interactive", Timeline(), Registry()) for n in range(2)]
    opening = [asyncio.create_task(call.open()) for call in calls]
    await asyncio.sleep(0)
    assert woken == [True, True]
    assert not any(task.done() for task in opening)
    backend.become(State.READY)
    await opening[0]
    with pytest.raises(ApiError) as refused:  # there is one place, and nobody speaks into a queue
        await opening[1]
    assert refused.value.code == "overloaded"
    calls[0].close()


async def test_a_client_that_leaves_while_the_model_is_loaded_leaves_the_queue(tmp_path: Path) -> None:
    async with counter(str(tmp_path)) as running:
        desk = running.desk(loading(), kind="audio")
        host, port = desk.gateway.address
        streams = desk.gateway.fleet.routes[0].streams
        _, writer = await asyncio.open_connection(host, port)
        writer.write(HANDSHAKE.format(f"{host}:{port}").encode())
        await until(lambda: streams.waiting == 1)
        writer.close()
        await until(lambda: streams.waiting == 0)
        await until(lambda: desk.book.outcomes == ["client_left"])
        desk.backend.become(State.READY)
        assert streams.used == 0
