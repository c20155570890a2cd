"""Forms with files (RFC 7578), read as they come: files into the spool, never into memory."""

from collections import defaultdict
from collections.abc import AsyncIterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from multipart import MultipartError, MultipartSegment, PushMultipartParser, parse_options_header

from gateway.errors import ApiError, bad_request, unsupported_media_type
from gateway.spool import Spool, SpoolFile, SpoolFull

MAX_FIELD_BYTES = 64 * 1024  # of all fields together, files excepted
MAX_PARTS = 128
MAX_SUFFIX = 8  # characters of a file's extension that its decoder gets to see


@dataclass(frozen=True, slots=True)
class Form:
    """Values by name, in the order in which they came; and the one file, complete, which its taker has to unlink."""

    fields: Mapping[str, Sequence[str]]
    file: SpoolFile | None


async def read_form(content_type: str, body: AsyncIterable[bytes], spool: Spool, file_field: str) -> Form:
    """Parts may come in any order. Raises ApiError (400, 415, 507); nothing is left in the spool then."""
    kind, options = parse_options_header(content_type)
    boundary = options.get("boundary", "")
    if kind != "multipart/form-data" or not boundary:
        raise unsupported_media_type("multipart/form-data")
    reader = _Reader(spool, file_field)
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
            message = f"The server has no room for this upload: its spool holds {error.max_bytes} bytes."
            raise ApiError(507, message, code="spool_full", headers={"connection": "close"}) from None
        raise
    return Form(dict(reader.fields), reader.file)


class _Reader:
    def __init__(self, spool: Spool, file_field: str) -> None:
        self.fields: defaultdict[str, list[str]] = defaultdict(list)
        self.file: SpoolFile | None = None
        self._spool = spool
        self._file_field = file_field
        self._part: MultipartSegment | None = None
        self._value = bytearray()
        self._total = 0

    async def take(self, event: MultipartSegment | bytes | bytearray | None) -> None:
        match event:
            case MultipartSegment():
                self._begin(event)
            case None:
                await self._end()
            case _ if self._part is not None and self._is_file(self._part):
                assert self.file is not None
                await self.file.write(bytes(event))
            case _:
                self._total += len(event)
                if self._total > MAX_FIELD_BYTES:
                    name = self._part.name if self._part else None
                    raise bad_request(
                        name, f"{name!r} is too long: a form's fields have {MAX_FIELD_BYTES} bytes in all."
                    )
                self._value += event

    def discard(self) -> None:
        if self.file is not None:
            self.file.unlink()

    def _is_file(self, part: MultipartSegment) -> bool:
        return bool(part.name == self._file_field)

    def _begin(self, part: MultipartSegment) -> None:
        self._part = part
        self._value = bytearray()
        if self._is_file(part):
            if self.file is not None:
                raise bad_request(
                    self._file_field, f"{self._file_field!r} was sent more than once; one file a request."
                )
            self.file = self._spool.create(_suffix(part.filename))
        elif part.filename is not None:
            raise bad_request(part.name, f"{part.name!r} is no file here; the file is {self._file_field!r}.")

    async def _end(self) -> None:
        part, self._part = self._part, None
        assert part is not None
        if self._is_file(part):
            assert self.file is not None
            await self.file.finish()
            return
        try:
            self.fields[part.name].append(self._value.decode())
        except UnicodeDecodeError:
            raise bad_request(part.name, f"{part.name!r} is not valid UTF-8.") from None


def _suffix(filename: str | None) -> str:
    """The extension of a caller's file name, if it is a plain one."""
    suffix = PurePath(filename or "").suffix
    return suffix.lower() if suffix[1:].isalnum() and suffix.isascii() and len(suffix) <= MAX_SUFFIX else ""
