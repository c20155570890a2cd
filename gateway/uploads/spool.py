"""Uploads on disk: `spool/<instance>/`, private, capped, and gone when the request or the instance is.

Files do not travel in frames: a worker gets the path. Only the end of the request that wrote a file unlinks it.
"""

import asyncio
import contextlib
import fcntl
import os
import re
import secrets
import shutil
from pathlib import Path

# Bytes that a file keeps in memory before a thread writes them: one hop for many small chunks.
WRITE_BUFFER = 256 * 1024

LOCK = "lock"
_INSTANCE = re.compile(r"\d+-[0-9a-f]{8}")  # a folder's name: process id, and what tells it from an earlier one's


class SpoolFull(Exception):
    """The quota of the whole spool would be exceeded."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"the spool holds {max_bytes} bytes at most")
        self.max_bytes = max_bytes


class SpoolFile:
    """One upload. Written by one task: `write` …, `finish`; then read by a worker; `unlink` at the end."""

    def __init__(self, spool: "Spool", path: Path) -> None:
        self.path = path
        self.size = 0  # bytes accepted
        self._spool = spool
        self._buffer = bytearray()
        self._fd: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._writing: asyncio.Future[None] | None = None

    async def write(self, data: bytes) -> None:
        """Append. Raises SpoolFull, and OSError where the disk refuses."""
        self._spool.reserve(len(data))
        self.size += len(data)
        self._buffer += data
        if len(self._buffer) >= WRITE_BUFFER:
            await self._flush()

    async def finish(self) -> Path:
        """All of it is on disk, under the path returned."""
        if self._buffer:
            await self._flush()
        self._close()
        return self.path

    def unlink(self) -> None:
        """Remove the file and give its bytes back to the quota. Idempotent; a write that still runs loses its file."""
        if self._spool.forget(self):
            self._buffer.clear()
            self._spool.release(self.size)
            self.path.unlink(missing_ok=True)
            if self._writing is None:
                self._close()
            else:  # the descriptor belongs to the thread until it has written
                self._writing.add_done_callback(lambda _: self._close())

    async def _flush(self) -> None:
        if self._fd is None:
            raise ValueError(f"{self.path.name} is closed")
        data, self._buffer = self._buffer, bytearray()
        self._writing = asyncio.get_running_loop().run_in_executor(None, _write_all, self._fd, data)
        try:
            # Shielded: a writer that is cancelled must not let go of the descriptor under the thread.
            await asyncio.shield(self._writing)
        finally:
            if self._writing.done():
                self._writing = None

    def _close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


class Spool:
    """This instance's part of a spool folder, which several instances may share.

    An instance holds a lock on its folder as long as it lives, so what dead ones left is told from what live ones use
    whatever their process ids.
    """

    def __init__(self, root: Path, max_bytes: int) -> None:
        self.root = root
        self.max_bytes = max_bytes
        self.used = 0
        self.path: Path | None = None
        self._files: set[SpoolFile] = set()
        self._lock: int | None = None

    def open(self) -> None:
        """Make this instance's folder (mode 0700) and remove what dead instances left."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        # One at a time from here, so that nobody takes a folder whose lock is about to be taken for a dead one.
        lock = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._sweep()
            self.path = self.root / f"{os.getpid()}-{secrets.token_hex(4)}"
            self.path.mkdir(mode=0o700)
            self._lock = _locked(self.path)
        finally:
            os.close(lock)

    def close(self) -> None:
        """Remove this instance's folder and all in it. Idempotent."""
        lock, self._lock = self._lock, None
        if lock is not None and self.path is not None:
            for file in list(self._files):
                file.unlink()
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(lock)
            self.path = None

    def create(self, suffix: str = "") -> SpoolFile:
        """A new empty file. `suffix` is for decoders that look at it; the name is random, never a caller's."""
        if self.path is None:
            raise RuntimeError("the spool is not open")
        file = SpoolFile(self, self.path / f"{secrets.token_hex(16)}{suffix}")
        self._files.add(file)
        return file

    def reserve(self, size: int) -> None:
        """Count bytes that are about to be written. Raises SpoolFull."""
        if self.used + size > self.max_bytes:
            raise SpoolFull(self.max_bytes)
        self.used += size

    def release(self, size: int) -> None:
        self.used -= size

    def forget(self, file: SpoolFile) -> bool:
        """Whether `file` was there until now."""
        if file in self._files:
            self._files.remove(file)
            return True
        return False

    def _sweep(self) -> None:
        for folder in self.root.iterdir():
            # The spool may be a folder that others keep things in, locks among them.
            if not _INSTANCE.fullmatch(folder.name) or folder.is_symlink() or not (folder / LOCK).is_file():
                continue
            lock = _locked(folder)
            if lock is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


def _locked(folder: Path) -> int | None:
    """A descriptor that holds the folder's lock, or None where a live instance does."""
    with contextlib.suppress(OSError):
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            return None
        return lock
    return None


def _write_all(fd: int, data: bytearray) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
