"""Uploads on disk: private, capped, gone at the end."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.uploads import spool as spooling
from gateway.uploads.spool import WRITE_BUFFER, Spool, SpoolFull


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    it = Spool(tmp_path / "spool", max_bytes=10 * WRITE_BUFFER)
    it.open()
    yield it
    it.close()


async def test_what_is_written_is_there_until_it_is_unlinked(spool: Spool) -> None:
    file = spool.create(".wav")
    chunks = [os.urandom(WRITE_BUFFER // 3) for _ in range(7)]
    for chunk in chunks:
        await file.write(chunk)
    path = await file.finish()
    assert path.read_bytes() == b"".join(chunks)
    assert path.suffix == ".wav"
    assert spool.used == file.size == sum(map(len, chunks))
    file.unlink()
    file.unlink()
    assert not path.exists()
    assert spool.used == 0


async def test_nobody_else_can_read_it(spool: Spool) -> None:
    file = spool.create()
    assert spool.path is not None
    assert spool.path.stat().st_mode & 0o777 == 0o700
    assert file.path.stat().st_mode & 0o777 == 0o600
    assert spool.create().path.name != file.path.name


async def test_the_quota_holds_for_all_files_together(spool: Spool) -> None:
    first, second = spool.create(), spool.create()
    for _ in range(9):
        await first.write(bytes(WRITE_BUFFER))
    with pytest.raises(SpoolFull):
        await second.write(bytes(WRITE_BUFFER + 1))
    assert second.size == 0
    first.unlink()
    await second.write(bytes(WRITE_BUFFER + 1))
    second.unlink()
    assert spool.used == 0


async def test_a_writer_that_is_cancelled_loses_its_file_and_nothing_else(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread goes on writing to a descriptor that nobody else may get meanwhile."""
    loop = asyncio.get_running_loop()
    begun, go_on = asyncio.Event(), threading.Event()

    def slow(fd: int, data: bytearray) -> None:
        loop.call_soon_threadsafe(begun.set)
        go_on.wait(5)
        os.write(fd, data)  # still open

    monkeypatch.setattr(spooling, "_write_all", slow)
    file = spool.create()
    writing = asyncio.create_task(file.write(bytes(WRITE_BUFFER)))
    await begun.wait()
    thread = file._writing
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    file.unlink()
    go_on.set()
    assert thread is not None
    await thread
    await asyncio.sleep(0)
    assert file._fd is None
    assert not file.path.exists()
    assert spool.used == 0


async def test_a_disk_that_refuses(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytearray) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(spooling, "_write_all", full)
    file = spool.create()
    with pytest.raises(OSError, match="No space"):
        await file.write(bytes(WRITE_BUFFER))
    file.unlink()
    assert spool.used == 0


DEAD = """
import os, sys
from pathlib import Path
from gateway.uploads.spool import Spool
spool = Spool(Path(sys.argv[1]), 1000)
spool.open()
(spool.path / "left").write_bytes(b"x")
print(spool.path, flush=True)
sys.stdin.read()
os._exit(0)
"""


def test_what_dead_instances_left_is_removed_and_what_live_ones_use_is_not(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", DEAD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        theirs = Path(other.stdout.readline().strip())
        (tmp_path / "notes").mkdir()  # nothing of ours, a lock in it or not
        (tmp_path / "notes" / "lock").touch()
        first = Spool(tmp_path, 1000)
        first.open()
        assert (theirs / "left").exists()
        other.stdin.close()
        other.wait()
    second = Spool(tmp_path, 1000)
    second.open()
    assert not theirs.exists()
    assert (tmp_path / "notes").exists()
    assert first.path is not None
    assert first.path.exists()
    first.close()
    second.close()
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


async def test_closing_removes_everything(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 1000)
    spool.open()
    file = spool.create()
    await file.write(b"x")
    spool.close()
    spool.close()
    assert os.listdir(tmp_path) == []
    with pytest.raises(RuntimeError):
        spool.create()
