"""Any file that FFmpeg reads -> mono samples of one rate."""

from collections.abc import Iterator
from io import SEEK_SET, FileIO

import av
import numpy as np
import numpy.typing as npt
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.container import InputContainer

from pipelines.base import InvalidRequest
from pipelines.media.headers import Patch, cut_from, mended
from pipelines.media.messages import AudioJob
from pipelines.media.mixing import Mono

Samples = npt.NDArray[np.int16]

MAX_BROKEN_SHARE = 0.1  # of a file's packets: a few are skipped, as players do
BUFFER = 256 * 1024  # bytes that FFmpeg asks for in one read


def decode_audio(job: AudioJob) -> Iterator[Samples]:
    """All of a file's first audio track, piece by piece.

    Raises InvalidRequest (of `file`) for what can't be read, is cut off or has no sound in it, and as soon as more than
    `max_seconds` have been decoded, whatever the file's header says.
    """
    try:
        # Playlists name other files and addresses: nothing but what was uploaded is opened, by no protocol.
        with (
            _Upload(job.path) as file,
            av.open(
                file, "r", metadata_errors="ignore", options={"protocol_whitelist": "none"}, buffer_size=BUFFER
            ) as container,
        ):
            if not container.streams.audio:
                kind = container.format.long_name or container.format.name  # of what is no media at all, a guess
                raise InvalidRequest(f"The file has no audio track: its container is read as {kind!r}.", "file")
            yield from _checked(job, container, container.streams.audio[0])
    except MemoryError:  # some of FFmpeg's are that
        raise
    except av.PatchWelcomeError as error:
        raise InvalidRequest(
            "The file can't be read to its end: its audio changes in a way that FFmpeg does not follow.", "file"
        ) from error
    except (av.FFmpegError, ValueError, EOFError) as error:
        raise InvalidRequest(
            "The file can't be read as audio: its container is damaged, or none that FFmpeg knows.", "file"
        ) from error
    except OSError as error:  # where it lies is nobody's business
        raise InvalidRequest(f"The file can't be read: {error.strerror}.", "file") from error


def _checked(job: AudioJob, container: InputContainer, stream: AudioStream) -> Iterator[Samples]:
    mono = Mono(job.rate, job.max_seconds)
    samples = 0
    for piece in mono.run(_frames(container, stream)):
        samples += len(piece)
        yield piece
    if not samples:
        raise InvalidRequest("The file has an audio track, but no sound in it.", "file")
    seconds = samples / job.rate
    told = cut_from(job.path, container, stream, seconds)
    if told is not None:
        raise InvalidRequest(
            f"The file is cut off: its header tells of {told:.1f} s of audio, and {seconds:.1f} s are there.", "file"
        )


def _frames(container: InputContainer, stream: AudioStream) -> Iterator[AudioFrame]:
    """Decoded frames; a damaged file is one with many broken packets."""
    packets = broken = frames = 0
    try:
        for packet in container.demux(stream):
            packets += 1
            try:
                for frame in packet.decode():
                    frames += 1
                    yield frame
            except av.InvalidDataError:
                broken += 1
    except av.EOFError:
        pass  # AAC and others without an end-of-stream mark
    if broken > max(1, packets * MAX_BROKEN_SHARE) or (broken and not frames):
        raise InvalidRequest(f"The file is damaged: {broken} of its {packets} audio packets can't be decoded.", "file")


class _Upload(FileIO):
    """A file for FFmpeg, which seeks where a damaged header says, and believes what it says of sizes."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._patch: Patch | None = mended(path)

    def read(self, size: int | None = -1, /) -> bytes:
        at = self.tell()
        data = super().read(size) or b""
        patch = self._patch
        return data if patch is None else patch.over(data, at)

    def seek(self, offset: int, whence: int = SEEK_SET, /) -> int:
        try:
            return super().seek(offset, whence)
        except OSError:
            return -1
