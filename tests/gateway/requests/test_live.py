"""Live streams before their model is there."""

import asyncio
import logging
from pathlib import Path

import msgspec
import pytest

from gateway.backends.base import State
from gateway.errors import ApiError
from gateway.requests.exchange import Exchange, Job, Terms
from gateway.requests.live import LiveCall
from gateway.requests.routing import Route
from metrics.registry import Registry
from metrics.timeline import Timeline
from pipelines.kinds import metrics_by_kind
from pipelines.logs import fields
from pipelines.messages.audio import Audio, StreamRequest, decode_item
from tests.gateway.scripted import SETTINGS, ScriptedBackend
from tests.gateway.scripted_app import app_host
from tests.servers import until

HANDSHAKE = (
    "GET /v1/audio/stream HTTP/1.1\r\nHost: {0}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def begin(route: Route, request: StreamRequest, timeline: Timeline) -> Exchange:
    job = Job("x", route, request, 1, Terms(route.settings.timeout_s), live=True)
    return Exchange(job, timeline, Registry(metrics_by_kind()))


def loading() -> ScriptedBackend:
    backend = ScriptedBackend(slots=1)
    backend.state = State.LOADING
    return backend


async def test_live_streams_wait_for_the_load_too() -> None:
    backend = loading()
    woken: list[bool] = []
    settings = msgspec.structs.replace(SETTINGS, kind="audio")
    route = Route("m", "audio", (), settings, [backend], Registry(metrics_by_kind()), lambda: woken.append(True))
    calls = [LiveCall(begin, route, StreamRequest(), Timeline()) for _ in range(2)]
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


async def live(request: StreamRequest) -> tuple[LiveCall, ScriptedBackend]:
    backend = ScriptedBackend(slots=1)
    route = Route(
        "m", "audio", (), msgspec.structs.replace(SETTINGS, kind="audio"), [backend], Registry(metrics_by_kind())
    )
    call = LiveCall(begin, route, request, Timeline())
    await call.open()
    return call, backend


def heard(backend: ScriptedBackend) -> list[bytes]:
    items = [decode_item(data) for data in backend.calls[0].fed]
    return [item.data for item in items if isinstance(item, Audio)]


async def test_samples_stay_whole_where_anything_but_their_encoding_changes() -> None:
    request = StreamRequest()
    call, backend = await live(request)
    await call.speak(b"aAb")
    call.configured(msgspec.structs.replace(request, language="de"))
    await call.speak(b"Bc")
    call.configured(request)  # the worker has refused that
    await call.speak(b"CdD")
    assert heard(backend) == [b"aA", b"bB", b"cCdD"]
    call.close()


async def test_half_a_sample_is_no_part_of_the_audio_in_another_encoding() -> None:
    request = StreamRequest()
    call, backend = await live(request)
    await call.speak(b"aAb")
    call.configured(msgspec.structs.replace(request, encoding="pcmu", rate=8000))
    await call.speak(b"xyz")
    assert heard(backend) == [b"aA", b"xyz"]
    call.close()


async def test_a_client_that_leaves_while_the_model_is_loaded_leaves_the_queue(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with app_host(str(tmp_path)) as running:
        app = running.app(loading(), kind="audio")
        host, port = app.gateway.address
        streams = app.gateway.fleet.routes[0].streams
        _, writer = await asyncio.open_connection(host, port)
        writer.write(HANDSHAKE.format(f"{host}:{port}").encode())
        await until(lambda: streams.waiting == 1)
        writer.close()
        await until(lambda: streams.waiting == 0)
        await until(lambda: app.registry.outcomes == ["client_left"])
        requests = [record for record in caplog.records if record.name == "gateway.request"]
        assert [(fields(record)["status"], fields(record)["outcome"]) for record in requests] == [(499, "client_left")]
        app.backend.become(State.READY)
        assert streams.used == 0
