"""`data:` URIs as clients write them, and as nobody should."""

import asyncio
import base64
import binascii
import random
from urllib.parse import quote

import pytest

from gateway.errors import ApiError
from gateway.uploads.data_uri import TURN, decode_data_uri

FILE = random.Random(1).randbytes(1000)  # with both characters of base64 that URLs have others for
PLAIN = base64.b64encode(FILE).decode()
LIMIT = 2**20


async def read(uri: str, max_bytes: int = LIMIT) -> bytes:
    return await decode_data_uri(uri, "image", "part.url", max_bytes)


async def refusal(uri: str, max_bytes: int = LIMIT) -> ApiError:
    with pytest.raises(ApiError) as refused:
        await read(uri, max_bytes)
    assert refused.value.param == "part.url"
    assert "'part.url'" in refused.value.message
    return refused.value


def lines(text: str, end: str, length: int = 76) -> str:
    return end.join(text[first : first + length] for first in range(0, len(text), length))


@pytest.mark.parametrize(
    "uri",
    [
        f"data:image/png;base64,{PLAIN}",
        f"DATA:image/png;base64,{PLAIN}",
        f"Data:IMAGE/PNG;Base64,{PLAIN}",
        f" data:image/png;base64,{PLAIN}",
        f"data:image/png; base64 ,{PLAIN}",
        f"data:image/jpg;base64,{PLAIN}",
        f"data:image/anything+xml;charset=utf-8;name=a;base64,{PLAIN}",
        f"data:;base64,{PLAIN}",
        f"data:application/octet-stream;base64,{PLAIN}",
        f"data:image/png;base64,{PLAIN.rstrip('=')}",
        f"data:image/png;base64,{PLAIN.replace('+', '-').replace('/', '_')}",
        f"data:image/png;base64,{PLAIN.replace('+', '-').replace('/', '_').rstrip('=')}",
        f"data:image/png;base64,{quote(PLAIN, safe='')}",
        f"data:image/png;base64,{''.join(f'%{ord(each):02X}' for each in PLAIN)}",
        f"data:image/png;base64,{PLAIN.replace('=', '%3D')}",
        f"data:image/png;base64,{lines(PLAIN, chr(10))}",
        f"data:image/png;base64,{lines(PLAIN, chr(13) + chr(10))}\r\n",
        f"data:image/png;base64, {lines(PLAIN, ' ', 7)}",
        f"data:image/png;base64,{lines(PLAIN, '%0A')}",
    ],
)
async def test_what_clients_send(uri: str) -> None:
    assert await read(uri) == FILE


@pytest.mark.parametrize("length", range(7))
async def test_every_length(length: int) -> None:
    encoded = base64.b64encode(FILE[:length]).decode()
    for payload in (encoded, encoded.rstrip("=")):
        if length:
            assert await read(f"data:image/png;base64,{payload}") == FILE[:length]
        else:
            assert "holds no data" in (await refusal(f"data:image/png;base64,{payload}")).message


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("", "must be a data: URI"),
        ("image/png;base64,AAAA", "must be a data: URI"),
        ("data:image/png;base64", "in base64"),
        ("data:image/png,AAAA", "in base64"),
        ("data:image/svg+xml,%3Csvg/%3E", "in base64"),
        (f"data:{'a' * 2000};base64,AAAA", "in base64"),
        ("data:text/html;base64,AAAA", "of the type image/…, not 'text/html'"),
        ("data:imagine/png;base64,AAAA", "of the type image/…"),
        ("data:image/png;base64,", "holds no data"),
        ("data:image/png;base64,  \n", "holds no data"),
        ("data:image/png;base64,A", "not valid base64"),
        ("data:image/png;base64,AAAAA", "not valid base64"),
        ("data:image/png;base64,AA==AAAA", "not valid base64"),
        ("data:image/png;base64,=", "not valid base64"),
        ("data:image/png;base64,A*==", "not valid base64"),
        ("data:image/png;base64,A%2", "not valid base64"),
        ("data:image/png;base64,AAAA%", "not valid base64"),
        ("data:image/png;base64,AAAA%zz", "not valid base64"),
        ("data:image/png;base64,ÄÄÄÄ", "not valid base64"),
        ("data:image/png;base64,AAAA😀", "not valid base64"),
        ("data:image/png;base64,AA\0AA", "not valid base64"),
    ],
)
async def test_what_is_refused(uri: str, says: str) -> None:
    error = await refusal(uri)
    assert error.status == 400
    assert says in error.message


async def test_a_file_of_many_turns_is_the_same_wherever_it_is_cut() -> None:
    file = random.Random(2).randbytes(3 * TURN + 5)
    encoded = base64.b64encode(file).decode()
    for payload in (
        encoded,
        encoded.rstrip("="),
        lines(encoded, "\n", 61),
        lines(encoded, "%0a", 61),
        "".join(f"%{ord(each):02X}" for each in encoded),
    ):
        assert await read(f"data:image/png;base64,{payload}", len(file)) == file
    for broken in (encoded[:TURN] + "=" + encoded[TURN:], f"{'A' * (TURN - 2)}=={encoded}", encoded + "A"):
        assert "not valid base64" in (await refusal(f"data:image/png;base64,{broken}")).message


@pytest.mark.parametrize("size", [999, 3 * TURN])
async def test_more_bytes_than_are_accepted(size: int) -> None:
    encoded = base64.b64encode(bytes(size + 1)).decode()
    error = await refusal(f"data:image/png;base64,{encoded}", size)
    assert (error.status, error.code) == (413, "payload_too_large")
    assert f"{size} bytes" in error.message
    assert len(await read(f"data:image/png;base64,{encoded}", size + 1)) == size + 1


async def test_others_have_their_turns_while_a_large_one_is_decoded() -> None:
    size = 8 * 2**20
    uri = "data:image/png;base64," + binascii.b2a_base64(bytes(size), newline=False).decode()
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    assert len(await read(uri, size)) == size
    task.cancel()
    assert turns >= len(uri) // TURN
