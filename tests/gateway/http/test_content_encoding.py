"""Compressed bodies: what they say, how far they are read, and what is refused."""

import asyncio
import gzip
import json
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from gateway.asgi import Message
from gateway.errors import ApiError
from gateway.http.content_encoding import PIECE_BYTES, decoded, decoder
from tests.gateway.idle_fleet import IdleFleet, make_app, make_client, make_settings
from tests.gateway.scripted import ScriptedBackend, ScriptedCall
from tests.gateway.scripted_app import CHAT, AppHost, ScriptedApp, app_host, chat
from tests.servers import gateway


def raw_deflate(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(data) + stream.flush()


def in_members(data: bytes) -> bytes:
    middle = len(data) // 2
    return gzip.compress(data[:middle]) + gzip.compress(data[middle:])


FORMS = [
    (b"gzip", gzip.compress),
    (b"X-GZIP", gzip.compress),
    (b"gzip", in_members),
    (b"deflate", zlib.compress),
    (b"deflate", raw_deflate),
]


def read(encoding: bytes, *parts: bytes) -> list[bytes]:
    found = decoder(encoding)
    assert found is not None
    pieces = [piece for part in parts for piece in found.decode(part)]
    found.finish()
    return pieces


@given(form=st.sampled_from(FORMS), data=st.binary(max_size=2000), times=st.sampled_from([1, 300]), cuts=st.data())
def test_a_body_is_read_as_it_was_meant_however_it_is_cut(
    form: tuple[bytes, Callable[[bytes], bytes]], data: bytes, times: int, cuts: st.DataObject
) -> None:
    encoding, compress = form
    sent = compress(data * times)
    places = sorted(cuts.draw(st.lists(st.integers(0, len(sent)), max_size=5)))
    pieces = read(encoding, *(sent[a:b] for a, b in pairwise([0, *places, len(sent)])))
    assert b"".join(pieces) == data * times
    assert all(len(piece) <= PIECE_BYTES for piece in pieces)


async def test_members_that_say_nothing_leave_others_their_turn() -> None:
    """Ticks of another task, while all of it is in one read."""
    sent = gzip.compress(b"") * 5000 + gzip.compress(b"end")
    ticks = 0

    async def receive() -> Message:
        return {"type": "http.request", "body": sent, "more_body": False}

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    found = decoder(b"gzip")
    assert found is not None
    ticking = asyncio.create_task(tick())
    message = await decoded(receive, found, 100)()
    ticking.cancel()
    assert message["body"] == b"end"
    assert ticks >= len(sent) // 2**14


@pytest.mark.parametrize("encoding", [b"", b"identity", b" Identity "])
def test_what_is_not_encoded_needs_no_decoder(encoding: bytes) -> None:
    assert decoder(encoding) is None


@pytest.mark.parametrize("encoding", [b"br", b"zstd", b"gzip, gzip", b"compress", b"nonsense"])
def test_other_encodings_are_415(encoding: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        decoder(encoding)
    assert caught.value.status == 415
    assert caught.value.headers["accept-encoding"] == "gzip, deflate"


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        (b"gzip", b"plain"),
        (b"gzip", gzip.compress(b"cut" * 100)[:-1]),
        (b"gzip", gzip.compress(b"more") + b"than that"),
        (b"gzip", gzip.compress(b"x" * 100)[:-8] + b"12345678"),
        (b"deflate", zlib.compress(b"cut" * 100)[:-1]),
        (b"deflate", zlib.compress(b"more") + b"than that"),
    ],
)
def test_what_is_broken_is_400(encoding: bytes, body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        read(encoding, body)
    assert (caught.value.status, caught.value.code) == (400, "invalid_content_encoding")


# --- through the application ------------------------------------------------------------------------------------------


def answered(call: ScriptedCall) -> None:
    call.accept()
    call.text("fine")
    call.end()


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[AppHost]:
    async with app_host(str(tmp_path)) as running:
        yield running


def app(server: AppHost, kind: str = "text") -> ScriptedApp:
    backend = ScriptedBackend(answer=answered)
    backend.kind = kind
    return server.app(backend, kind=kind)


@pytest.mark.parametrize(("encoding", "compress"), FORMS)
async def test_a_json_body_may_be_compressed(
    server: AppHost, encoding: bytes, compress: Callable[[bytes], bytes]
) -> None:
    it = app(server)
    headers = {"content-type": "application/json", "content-encoding": encoding.decode()}
    body = compress(json.dumps(chat("word " * 100_000)).encode())
    answer = await it.client.post(CHAT, content=body, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == "fine"


async def test_a_form_may_be_compressed(server: AppHost) -> None:
    it = app(server, "audio")
    plain = httpx.Request("POST", "http://x", data={"model": "scripted"}, files={"file": b"noise " * 100_000})
    headers = {"content-type": plain.headers["content-type"], "content-encoding": "gzip"}
    sizes: list[int] = []

    def heard(call: ScriptedCall) -> None:
        sizes.append(Path(call.call.request.path).stat().st_size)  # type: ignore[union-attr]
        call.fail("invalid_request", "it is no audio", "file")

    it.backend.answer = heard
    sent = gzip.compress(plain.read())
    answer = await it.client.post("/v1/audio/transcriptions", content=sent, headers=headers)
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "it is no audio")
    assert sizes == [600_000]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings", "/v1/audio/transcriptions"])
async def test_a_body_is_bounded_as_it_is_once_decompressed(tmp_path: Path, path: str) -> None:
    """In memory, too: 64 MiB that came as 300 kB."""
    settings = make_settings(tmp_path, port=0, max_body_bytes=2**20, max_upload_bytes=2**20)
    kind = "multipart/form-data; boundary=x" if "audio" in path else "application/json"
    head = b'--x\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n' if "audio" in path else b""
    bomb = gzip.compress(head + b" " * (64 * 2**20), 1)
    headers = {"content-type": kind, "content-encoding": "gzip"}
    async with gateway(settings, IdleFleet) as running, httpx.AsyncClient(base_url=running.url) as client:
        tracemalloc.start()
        answer = await client.post(path, content=bomb, headers=headers)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "payload_too_large")
    assert peak < 8 * 2**20


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/audio/transcriptions", "/nothing"])
async def test_a_body_that_cannot_be_read_is_refused_everywhere(tmp_path: Path, path: str) -> None:
    app, _ = make_app(make_settings(tmp_path))
    async with make_client(app, **{"content-type": "application/json", "content-encoding": "br"}) as client:
        answer = await client.post(path, content=b"{}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_content_encoding")
    assert answer.headers["accept-encoding"] == "gzip, deflate"
