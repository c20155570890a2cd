"""Pictures kept for their address."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.config.settings import ServerSettings
from gateway.errors import ApiError
from gateway.uploads.gallery import Gallery
from gateway.uploads.spool import Spool

KIB = 1024


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    opened = Spool(tmp_path, 100 * KIB)
    opened.open()
    yield opened
    opened.close()


def gallery(spool: Spool, clock: Clock | None = None, *, files: int = 3, size: int = 10 * KIB) -> Gallery:
    settings = ServerSettings(image_url_ttl_s=60, image_url_max_files=files, image_url_max_bytes=size)
    return Gallery(spool, settings, clock or Clock())


def lying(spool: Spool) -> int:
    """How many files there are on the disk."""
    assert spool.path is not None
    return sum(path.name != "lock" for path in spool.path.iterdir())


async def test_a_picture_is_there_until_it_expires(spool: Spool) -> None:
    clock = Clock()
    kept = gallery(spool, clock)
    first, second = await kept.keep([b"one", b"two"], "webp")
    assert first != second
    assert first.endswith(".webp")
    found = kept.find(first)
    assert found is not None
    assert (found.path.read_bytes(), found.media_type) == (b"one", "image/webp")
    assert found.path.stat().st_mode & 0o077 == 0
    clock.now += 59.9
    assert kept.find(first) is found
    assert kept.seconds_left(found) == pytest.approx(0.1)
    clock.now += 0.2
    assert kept.find(first) is None
    await kept.keep([b"three"], "png")
    assert (len(kept), lying(spool), spool.used) == (1, 1, len(b"three"))
    kept.close()


async def test_the_oldest_make_room_by_number_and_by_bytes(spool: Spool) -> None:
    kept = gallery(spool)
    names = [(await kept.keep([bytes(size * KIB)], "png"))[0] for size in (1, 1, 1, 1)]
    assert [kept.find(name) is not None for name in names] == [False, True, True, True]
    (large,) = await kept.keep([bytes(9 * KIB)], "png")
    assert [kept.find(name) is not None for name in (*names, large)] == [False, False, False, True, True]
    assert (lying(spool), spool.used) == (2, 10 * KIB)
    kept.close()
    assert (len(kept), lying(spool), spool.used) == (0, 0, 0)
    kept.close()


@pytest.mark.parametrize("pictures", [[b"x"] * 4, [bytes(6 * KIB)] * 2], ids=["number", "bytes"])
async def test_what_never_fits_drops_nothing_else(spool: Spool, pictures: list[bytes]) -> None:
    kept = gallery(spool)
    (name,) = await kept.keep([b"one"], "png")
    with pytest.raises(ApiError) as caught:
        await kept.keep(pictures, "png")
    assert (caught.value.status, caught.value.code) == (507, "spool_full")
    assert kept.find(name) is not None
    assert lying(spool) == 1
    kept.close()


async def test_a_full_spool_keeps_none_of_a_request(spool: Spool) -> None:
    kept = gallery(spool, size=200 * KIB)
    spool.reserve(90 * KIB)
    with pytest.raises(ApiError) as caught:
        await kept.keep([bytes(8 * KIB), bytes(8 * KIB)], "png")
    assert caught.value.status == 507
    assert (lying(spool), spool.used, len(kept)) == (0, 90 * KIB, 0)
    kept.close()


async def test_a_request_that_is_cancelled_while_it_writes_keeps_nothing(spool: Spool) -> None:
    kept = gallery(spool)
    keeping = asyncio.ensure_future(kept.keep([bytes(4 * KIB), b"two"], "png"))
    await asyncio.sleep(0)  # it waits for the thread that writes
    keeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await keeping
    assert (len(kept), spool.used) == (0, 0)
    kept.close()
