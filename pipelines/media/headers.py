"""What containers say of their sizes: where it can't be true a file is read to its end; where it proves that a part of
the file is missing, the file is cut off.

Programs that write to a pipe can't come back to fill in a size: they leave the largest one, zero, or the size of what
they had so far.
"""

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import BinaryIO

import av
from av.audio.stream import AudioStream
from av.container import InputContainer

MISSING = (0.5, 0.02)  # seconds and share of what is told: with more than both missing, a file is cut off
SURPLUS = 0.02  # share of a file behind the sound that it tells of, that is sound when it is nothing else
PLACEHOLDERS = (0x3FFFFFFF, 0x7F000000, 0x7FFFFFFF, 0xFFFFFFFF, 2**63 - 1)
MAX_CHUNKS = 10_000  # that are looked at: a hostile file can have one in every eight bytes
NEAR = 64 * 1024  # bytes around a placeholder: headers, and whole frames, are taken off


@dataclass(frozen=True, slots=True)
class Patch:
    """Bytes of a header that are read as others."""

    at: int
    data: bytes

    def over(self, read: bytes, at: int) -> bytes:
        """`read`, which begins at `at` of the file."""
        first, last = max(self.at, at), min(self.at + len(self.data), at + len(read))
        if first >= last:
            return read
        return read[: first - at] + self.data[first - self.at : last - self.at] + read[last - at :]


@dataclass(frozen=True, slots=True)
class Chunk:
    name: bytes
    start: int  # of its content
    size: int  # of its content, as the file says
    next: int  # where the chunk behind it begins


@dataclass(frozen=True, slots=True)
class Chunks:
    """How a format writes its chunks."""

    first: int  # where the first one begins
    header: str  # struct of name and size
    data: bytes  # the name of the one that has the sound
    align: int = 2
    counts_header: bool = False  # in the size

    @property
    def length(self) -> int:
        return struct.calcsize(self.header)

    def walk(self, file: BinaryIO, at: int) -> Iterator[Chunk]:
        for _ in range(MAX_CHUNKS):
            file.seek(at)
            header = file.read(self.length)
            if len(header) < self.length:
                return
            name, size = struct.unpack(self.header, header)
            size -= self.length * self.counts_header
            start = at + self.length
            at = start + size + -size % self.align
            yield Chunk(name, start, size, at)
            if size < 0 or at >= 2**63:  # no place in any file
                return


@dataclass(frozen=True, slots=True)
class Sound:
    """The part of a file that has the sound, uncompressed or nearly so."""

    chunks: Chunks
    start: int
    told: int  # bytes
    there: int  # bytes to the end of the file
    size: tuple[int, str]  # where the size is written, and its struct

    def to_the_end(self) -> bytes:
        """What the header has to say so that all that is there belongs to the sound."""
        _, kind = self.size
        added = self.chunks.length * self.chunks.counts_header
        return struct.pack(kind, min(self.there + added, 0xFFFFFFFF if kind[1] == "I" else 2**63 - 1))


W64_DATA = b"data\xf3\xac\xd3\x11\x8c\xd1\x00\xc0\x4f\x8e\xdb\x8a"


def _chunks(head: bytes) -> Chunks | None:
    match head[:4], head[8:12]:
        case (b"RIFF" | b"RF64" | b"BW64", b"WAVE"):
            return Chunks(12, "<4sI", b"data")
        case (b"RIFX", b"WAVE"):
            return Chunks(12, ">4sI", b"data")
        case (b"FORM", b"AIFF" | b"AIFC"):
            return Chunks(12, ">4sI", b"SSND")
        case (b"caff", _):
            return Chunks(8, ">4sq", b"data", align=1)
        case (b"riff", _):
            return Chunks(40, "<16sq", W64_DATA, align=8, counts_header=True)
    return None


def find_sound(path: str) -> Sound | None:
    """None where the format's sizes are not read here."""
    length = os.path.getsize(path)
    with open(path, "rb") as file:
        head = file.read(24)
        if head[:4] == b".snd" and len(head) == 24:
            start, told = struct.unpack(">II", head[4:12])
            return Sound(Chunks(0, ">4sI", b""), start, told, length - start, (8, ">I"))
        chunks = _chunks(head)
        if chunks is None:
            return None
        long: int | None = None  # where RF64 has the size that has no room in the chunk's header
        for chunk in chunks.walk(file, chunks.first):
            if chunk.name == b"ds64":
                long = chunk.start + 8
            if chunk.name == chunks.data:
                size = chunk.start - chunks.length + len(chunk.name), chunks.header[0] + chunks.header[-1]
                sound = Sound(chunks, chunk.start, chunk.size, length - chunk.start, size)
                if long is None or chunk.size != 0xFFFFFFFF:
                    return sound
                file.seek(long)
                told = int.from_bytes(file.read(8), "little", signed=True)
                return replace(sound, told=told, size=(long, "<q"))
    return None


def mended(path: str) -> Patch | None:
    """What a header has to say instead so that all of the sound is read; None where it says that."""
    sound = find_sound(path)
    if sound is None or sound.there <= 0 or not _is_wrong(sound, path):
        return None
    at, _ = sound.size
    return Patch(at, sound.to_the_end())


def _is_wrong(sound: Sound, path: str) -> bool:
    if is_placeholder(sound.told):
        return True
    if sound.there - sound.told <= SURPLUS * sound.there:
        return False
    return not _ends_in_chunks(sound, path)


def is_placeholder(size: int) -> bool:
    return size <= 0 or any(abs(size - each) <= NEAR for each in PLACEHOLDERS)


def _ends_in_chunks(sound: Sound, path: str) -> bool:
    """Whether chunks follow the sound as far as its header tells, up to the end of the file."""
    end = sound.start + sound.there
    chunks = sound.chunks
    at = sound.start + sound.told
    with open(path, "rb") as file:
        for chunk in chunks.walk(file, at + -sound.told % chunks.align):
            if not chunk.name[:4].isascii() or not chunk.name[:4].decode().isprintable() or chunk.size < 0:
                return False
            if chunk.next >= end:
                return chunk.start + chunk.size <= end
    return False


def cut_from(path: str, container: InputContainer, stream: AudioStream, seconds: float) -> float | None:
    """The length in seconds of the track of which only `seconds` are there, where the container proves that there was
    more; else None."""
    told = _told_seconds(path, container, stream, seconds)
    least, share = MISSING
    return told if told is not None and told - seconds > max(least, share * told) else None


def _told_seconds(path: str, container: InputContainer, stream: AudioStream, seconds: float) -> float | None:
    """None where the header tells nothing, an estimate (mp3, adts), or no more than what is there."""
    kinds = container.format.name.split(",")
    length = os.path.getsize(path)
    duration = float(stream.duration * stream.time_base) if stream.duration and stream.time_base else None
    if "flac" in kinds:
        return duration  # it counts samples
    if "mp4" in kinds:
        entries = stream.index_entries
        return duration if len(entries) and entries[-1].pos + entries[-1].size > length else None
    if "matroska" in kinds:
        end = _segment_end(path)
        whole = container.duration / av.time_base if len(container.streams) == 1 and container.duration else None
        return whole if end is not None and end > length else None  # of all tracks, the longest
    sound = find_sound(path)
    if sound is None or is_placeholder(sound.told) or sound.told <= sound.there:
        return None
    return seconds * sound.told / sound.there


def _segment_end(path: str) -> int | None:
    """Where a Matroska file's segment ends, as its header has it (RFC 9559); None where it says nothing."""
    with open(path, "rb") as file:
        head = file.read(4096)
    at = 0
    for name in (b"\x1a\x45\xdf\xa3", b"\x18\x53\x80\x67"):
        if head[at : at + 4] != name or len(head) < at + 12 or not head[at + 4]:
            return None
        width = 9 - head[at + 4].bit_length()  # of the size, by its leading zeros (RFC 8794)
        size = int.from_bytes(head[at + 4 : at + 4 + width], "big") & (1 << 7 * width) - 1
        if size == (1 << 7 * width) - 1:
            return None  # unknown, as live recordings have it
        at += 4 + width + size
    return at
