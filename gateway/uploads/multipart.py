"""Forms with files (RFC 7578), read as they come: files into the spool, never into memory."""

from collections import defaultdict
from collections.abc import AsyncIterable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from multipart import MultipartError, MultipartSegment, PushMultipartParser, parse_options_header

from gateway.errors import ApiError, bad_request, spool_full, unsupported_media_type
from gateway.uploads.spool import Spool, SpoolFile, SpoolFull

MAX_PARTS = 128
MAX_SUFFIX = 8  # characters of a file's extension that its decoder gets to see


@dataclass(frozen=True, slots=True)
class Limits:
    """In bytes."""

    fields: int = 64 * 1024  # all together, files excepted
    file: int | None = None  # each


@dataclass(frozen=True, slots=True)
class Form:
    """Values by name, in the order in which they came; and files by name, complete, which their taker has to unlink."""

    fields: Mapping[str, Sequence[str]]
    files: Mapping[str, SpoolFile]

    def discard(self) -> None:
        for file in self.files.values():
            file.unlink()


async def read_form(
    content_type: str,
    body: AsyncIterable[bytes],
    spool: Spool,
    file_fields: Collection[str],
    limits: Limits = Limits(),
) -> Form:
    """Parts may come in any order; those of `file_fields` are files, one each at most.

    Raises ApiError (400, 413, 415, 507); nothing is left in the spool then.
    """
    kind, options = parse_options_header(content_type)
    boundary = options.get("boundary", "")
    if kind != "multipart/form-data" or not boundary:
        raise unsupported_media_type("multipart/form-data")
    reader = _Reader(spool, file_fields, limits)
    try:
        parser = PushMultipartParser(boundary, max_segment_count=MAX_PARTS)
        async for chunk in body:
            for event in parser.parse(chunk) if chunk else ():
                await reader.take(event)
        parser.close()
    except BaseException as error:
        reader.discard()
        if isinstance(error, MultipartError):
            raise bad_request(None, "The request body is no complete multipart form.", code="invalid_form") from None
        if isinstance(error, SpoolFull):
            raise spool_full(error.max_bytes, "this upload") from None
        raise
    return Form(dict(reader.fields), reader.files)


class _Reader:
    def __init__(self, spool: Spool, file_fields: Collection[str], limits: Limits) -> None:
        self.fields: defaultdict[str, list[str]] = defaultdict(list)
        self.files: dict[str, SpoolFile] = {}
        self._spool = spool
        self._file_fields = file_fields
        self._limits = limits
        self._file: SpoolFile | None = None  # the one that is being received
        self._part: MultipartSegment | None = None
        self._value = bytearray()
        self._total = 0

    async def take(self, event: MultipartSegment | bytes | bytearray | None) -> None:
        match event:
            case MultipartSegment():
                self._begin(event)
            case None:
                await self._end()
            case _ if self._file is not None:
                await self._write(self._file, bytes(event))
            case _:
                self._total += len(event)
                if self._total > self._limits.fields:
                    name = self._part.name if self._part else None
                    raise bad_request(
                        name, f"{name!r} is too long: a form's fields have {self._limits.fields} bytes in all."
                    )
                self._value += event

    def discard(self) -> None:
        for file in self.files.values():
            file.unlink()

    async def _write(self, file: SpoolFile, data: bytes) -> None:
        limit = self._limits.file
        if limit is not None and file.size + len(data) > limit:
            name = next(name for name, each in self.files.items() if each is file)
            message = f"{name!r} is larger than the {limit} bytes that are accepted."
            raise ApiError(413, message, code="payload_too_large", param=name)
        await file.write(data)

    def _begin(self, part: MultipartSegment) -> None:
        self._part = part
        self._value = bytearray()
        name = part.name.removesuffix("[]")  # clients spell a list of files so, also one of a single file
        if name in self._file_fields:
            if name in self.files:
                raise bad_request(name, f"{name!r} was sent more than once; one file of a name a request.")
            self._file = self.files[name] = self._spool.create(_suffix(part.filename))
        elif part.filename is not None:
            files = " and ".join(map(repr, self._file_fields))
            raise bad_request(part.name, f"{part.name!r} is no file here; a request's files: {files}.")

    async def _end(self) -> None:
        part, self._part = self._part, None
        assert part is not None
        file, self._file = self._file, None
        if file is not None:
            await file.finish()
            return
        try:
            self.fields[part.name].append(self._value.decode())
        except UnicodeDecodeError:
            raise bad_request(part.name, f"{part.name!r} is not valid UTF-8.") from None


def _suffix(filename: str | None) -> str:
    """The extension of a caller's file name, if it is a plain one."""
    suffix = PurePath(filename or "").suffix
    return suffix.lower() if suffix[1:].isalnum() and suffix.isascii() and len(suffix) <= MAX_SUFFIX else ""
