"""Finished pictures that can be fetched from an address for a while."""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from gateway import errors
from gateway.config.settings import ServerSettings
from gateway.uploads.spool import Spool, SpoolFile, SpoolFull
from pipelines.messages.image import OutputFormat

TOKEN_BYTES = 32  # of randomness in a name: who has it was told


@dataclass(frozen=True, slots=True)
class Kept:
    """One picture in the spool."""

    file: SpoolFile
    media_type: str
    expires: float  # on the gallery's clock

    @property
    def path(self) -> Path:
        return self.file.path


class Gallery:
    """Pictures by a name that can't be guessed, each until it expires, or newer ones need its room.

    Their bytes count for the spool's quota. Lives on the event loop; one for the gateway.
    """

    def __init__(self, spool: Spool, settings: ServerSettings, clock: Callable[[], float] = monotonic) -> None:
        self._spool = spool
        self._ttl = settings.image_url_ttl_s
        self._max_files = settings.image_url_max_files
        self._max_bytes = settings.image_url_max_bytes
        self._clock = clock
        self._kept: dict[str, Kept] = {}  # oldest first: all live equally long
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._kept)

    async def keep(self, pictures: Sequence[bytes], format: OutputFormat) -> list[str]:
        """The names of pictures of one request, in their order.

        Raises ApiError (507) where there is no room, and OSError where the disk refuses; nothing is kept then, nor
        where it is cancelled.
        """
        if len(pictures) > self._max_files or sum(map(len, pictures)) > self._max_bytes:
            raise errors.spool_full(self._max_bytes, "these pictures")
        files: list[SpoolFile] = []
        try:
            for data in pictures:
                files.append(self._spool.create(f".{format}"))
                await files[-1].write(data)
                await files[-1].finish()
        except BaseException as error:
            for file in files:
                file.unlink()
            if isinstance(error, SpoolFull):
                raise errors.spool_full(error.max_bytes, "these pictures") from None
            raise
        expires = self._clock() + self._ttl
        names = [f"{secrets.token_urlsafe(TOKEN_BYTES)}.{format}" for _ in files]
        for name, file in zip(names, files, strict=True):
            self._kept[name] = Kept(file, f"image/{format}", expires)
            self._bytes += file.size
        self._tidy()
        return names

    def find(self, name: str) -> Kept | None:
        """A picture that has not expired."""
        kept = self._kept.get(name)
        return kept if kept is not None and kept.expires > self._clock() else None

    def seconds_left(self, kept: Kept) -> float:
        return max(0.0, kept.expires - self._clock())

    def close(self) -> None:
        """Remove all pictures. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
        for name in list(self._kept):
            self._drop(name)

    def _tidy(self) -> None:
        """Drop what has expired and what is too much, oldest first; come back when the next one expires."""
        now = self._clock()
        for name, kept in list(self._kept.items()):
            if kept.expires > now and len(self._kept) <= self._max_files and self._bytes <= self._max_bytes:
                break
            self._drop(name)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._kept:
            oldest = next(iter(self._kept.values()))
            self._timer = asyncio.get_running_loop().call_later(max(0.01, oldest.expires - now), self._tidy)

    def _drop(self, name: str) -> None:
        kept = self._kept.pop(name)
        self._bytes -= kept.file.size
        kept.file.unlink()
