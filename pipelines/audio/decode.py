"""Any file that FFmpeg reads -> 16 kHz mono."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import SEEK_SET, FileIO

import av
import numpy as np
import numpy.typing as npt
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler
from av.audio.stream import AudioStream
from av.container import InputContainer

from pipelines.audio.features import SAMPLE_RATE, Samples
from pipelines.base import InvalidRequest

OPPOSED = -0.5  # correlation of two channels below which one is the other turned upside down
BLOCK = SAMPLE_RATE // 2  # samples that polarity is judged on
MAX_BROKEN_SHARE = 0.1  # of a file's packets: a few are skipped, as players do
MISSING = (0.5, 0.02)  # seconds and share of what a header tells of: with more than both missing, the file is cut off
UNKNOWN_SIZE = (0, 0xFFFFFFFF)  # what recorders leave in a wav's header until, or where, they can't write the real one


def decode_file(path: str, max_seconds: float) -> Samples:
    """All of a file's first audio track, [samples].

    Raises InvalidRequest (of `file`) for what can't be read, is cut off or has no sound in it, and as soon as more than
    `max_seconds` have been decoded, whatever the file's header says.
    """
    try:
        # Playlists name other files and addresses: nothing but what was uploaded is opened, by no protocol.
        with (
            _Upload(path) as file,
            av.open(file, "r", metadata_errors="ignore", options={"protocol_whitelist": "none"}) as container,
        ):
            if not container.streams.audio:
                raise InvalidRequest("The file has no audio track.", "file")
            samples = _collect(container, container.streams.audio[0], max_seconds)
            _check_length(len(samples) / SAMPLE_RATE, _told_seconds(container, container.streams.audio[0], path))
            return samples
    except (av.FFmpegError, ValueError, EOFError) as error:
        raise InvalidRequest(
            "The file can't be read as audio; any format that FFmpeg knows will do.", "file"
        ) from error


def _collect(container: InputContainer, stream: AudioStream, max_seconds: float) -> Samples:
    pieces: list[Samples] = []
    samples = 0
    for piece in _Mono().run(_frames(container, stream)):
        samples += len(piece)
        if samples > max_seconds * SAMPLE_RATE:
            raise InvalidRequest(f"The file holds more than the {max_seconds:g} s of audio that are accepted.", "file")
        pieces.append(piece)
    if not pieces:
        raise InvalidRequest("The file has an audio track, but no sound in it.", "file")
    return np.concatenate(pieces)


def _check_length(seconds: float, told: float | None) -> None:
    """Raises InvalidRequest where a good part of what the header tells of is not there."""
    if told is not None and told - seconds > max(MISSING[0], MISSING[1] * told):
        raise InvalidRequest(
            f"The file is cut off: its header tells of {told:.1f} s of audio, and {seconds:.1f} s are there.", "file"
        )


def _told_seconds(container: InputContainer, stream: AudioStream, path: str) -> float | None:
    """The length of the track as the file's header has it; None where it has none, or an estimate (mp3, adts)."""
    kinds = container.format.name.split(",")
    if "wav" in kinds:
        return _told_wav_seconds(path)
    if stream.duration and stream.time_base and ("flac" in kinds or "mp4" in kinds):
        return float(stream.duration * stream.time_base)
    if "matroska" in kinds and len(container.streams) == 1 and container.duration:  # of all tracks, the longest
        return container.duration / av.time_base
    return None


def _told_wav_seconds(path: str) -> float | None:
    """What the data chunk of a RIFF file says; FFmpeg goes by the size of the file."""
    with open(path, "rb") as file:
        if file.read(4) != b"RIFF":
            return None
        file.seek(12)
        bytes_a_second = 0
        while len(header := file.read(8)) == 8:
            name, size = struct.unpack("<4sI", header)
            if name == b"data":
                return size / bytes_a_second if bytes_a_second and size not in UNKNOWN_SIZE else None
            start = file.tell()
            if name == b"fmt " and len(fields := file.read(12)) == 12:
                bytes_a_second = struct.unpack("<HHII", fields)[3]
            file.seek(start + size + size % 2)
    return None


def _frames(container: InputContainer, stream: AudioStream) -> Iterator[AudioFrame]:
    """Decoded frames; a damaged file is one with many broken packets."""
    packets = broken = 0
    try:
        for packet in container.demux(stream):
            packets += 1
            try:
                yield from packet.decode()
            except av.InvalidDataError:
                broken += 1
    except av.EOFError:
        pass  # AAC and others without an end-of-stream mark
    if broken > max(1, packets * MAX_BROKEN_SHARE):
        raise InvalidRequest(f"The file is damaged: {broken} of its {packets} audio packets can't be decoded.", "file")


class _Upload(FileIO):
    """A file for FFmpeg, which seeks where a damaged header says."""

    def seek(self, offset: int, whence: int = SEEK_SET, /) -> int:
        try:
            return super().seek(offset, whence)
        except OSError:
            return -1


@dataclass(slots=True)
class _Mono:
    """Resamples every channel, then mixes them. One of opposed polarity is turned, so that none cancels another."""

    _signs: npt.NDArray[np.float32] | None = None
    _waiting: list[npt.NDArray[np.float32]] = field(default_factory=list)  # [channels, samples] each

    def run(self, frames: Iterator[AudioFrame]) -> Iterator[Samples]:
        resampler: AudioResampler | None = None
        shape: tuple[str, int, str] | None = None
        for frame in frames:
            found = (frame.layout.name, frame.sample_rate, frame.format.name)
            if resampler is None or found != shape:  # a stream may change in the middle
                if resampler is not None:
                    yield from self._mix(resampler.resample(None), last=True)
                resampler = AudioResampler(format="fltp", layout=frame.layout, rate=SAMPLE_RATE)
                shape = found
            frame.pts = None  # gaps in the time stamps are the container's affair
            yield from self._mix(resampler.resample(frame))
        if resampler is not None:
            yield from self._mix(resampler.resample(None), last=True)

    def _mix(self, frames: list[AudioFrame], *, last: bool = False) -> Iterator[Samples]:
        self._waiting += [frame.to_ndarray().astype(np.float32, copy=False) for frame in frames]
        if not self._waiting or (not last and sum(piece.shape[1] for piece in self._waiting) < BLOCK):
            return
        block = np.concatenate(self._waiting, axis=1)
        self._waiting.clear()
        mono = block[0] if len(block) == 1 else self._turned(block).mean(axis=0)
        yield np.clip(np.rint(mono * 32768), -32768, 32767).astype(np.int16)

    def _turned(self, block: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        if self._signs is None or len(self._signs) != len(block):
            self._signs = np.ones(len(block), np.float32)
        norms = np.linalg.norm(block, axis=1)
        reference = int(norms.argmax())
        products = block @ block[reference] * self._signs * self._signs[reference]
        opposed = products < OPPOSED * norms * norms[reference]
        self._signs = np.where(opposed, -self._signs, self._signs).astype(np.float32)
        return block * self._signs[:, None]
