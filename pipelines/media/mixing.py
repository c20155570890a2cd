"""Decoded frames of any layout, format and rate -> mono of one rate, in which no channel is lost."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from av.audio.frame import AudioFrame
from av.audio.plane import AudioPlane
from av.audio.resampler import AudioResampler

from pipelines.base import InvalidRequest

Floats = npt.NDArray[np.float32]
Samples = npt.NDArray[np.int16]
Block = npt.NDArray[Any]  # [channels, samples] in a stream's own format

MAX_CHANNELS = 64
MAX_RATE = 10_000_000  # Hz
OPPOSED = -0.5  # correlation of two channels below which one is the other turned upside down
BLOCK_SECONDS = 0.5  # that polarity and levels are judged on
RAMP_SECONDS = 0.05  # in which one block's weights become the next one's
MIN_BLOCK = 1024  # samples, where there are few in a second
TAIL = 64  # samples of silence after a stream that is shorter than this: shorter ones never leave the resampler

DTYPES = {"u8": "u1", "s16": "i2", "s32": "i4", "s64": "i8", "flt": "f4", "dbl": "f8"}


class Mono:
    """Mixes, then resamples.

    Channels are added up with weights that are judged block by block. One of opposed polarity is turned, so that none
    cancels another; and the sum is scaled by what the loudest channel has of all levels: where one channel alone is
    heard it keeps its level, however many silent ones are beside it, and equal channels are averaged.
    """

    def __init__(self, rate: int, max_seconds: float) -> None:
        self._rate = rate
        self._max_seconds = max_seconds
        self._seconds = 0.0  # taken in

    def run(self, frames: Iterable[AudioFrame]) -> Iterator[Samples]:
        """Raises InvalidRequest for more than `max_seconds`, and for what can't be mixed or resampled."""
        section: _Section | None = None
        for frame in frames:
            if not frame.samples:
                continue
            shape = frame.layout.nb_channels, frame.sample_rate, frame.format.name
            if section is None or section.shape != shape:  # a stream may change in the middle
                if section is not None:
                    yield from section.end()
                section = _Section(shape, self._rate)
            self._seconds += frame.samples / frame.sample_rate
            if self._seconds > self._max_seconds:
                raise InvalidRequest(
                    f"The file holds more than the {self._max_seconds:g} s of audio that are accepted.", "file"
                )
            yield from section.take(frame)
        if section is not None:
            yield from section.end()


class _Section:
    """A stretch of a stream that has one number of channels, rate and format."""

    def __init__(self, shape: tuple[int, int, str], rate: int) -> None:
        channels, self._rate, format = self.shape = shape
        if not 1 <= channels <= MAX_CHANNELS:
            raise InvalidRequest(f"The file has {channels} audio channels; up to {MAX_CHANNELS} are read.", "file")
        if not 1 <= self._rate <= MAX_RATE:
            raise InvalidRequest(f"The file has {self._rate} samples a second; up to {MAX_RATE} are read.", "file")
        self._planar = format.endswith("p")
        self._dtype = np.dtype(DTYPES[format.removesuffix("p")])
        self._block = max(MIN_BLOCK, int(self._rate * BLOCK_SECONDS))
        self._mixer = _Mixer(channels, max(1, int(self._rate * RAMP_SECONDS)))
        self._resampler = None if self._rate == rate else _Resampler(self._rate, rate)
        self._waiting: list[Block] = []
        self._size = 0

    def take(self, frame: AudioFrame) -> Iterator[Samples]:
        self._waiting.append(self._planes(frame))
        self._size += frame.samples
        if self._size >= self._block:
            yield from self._flush()

    def end(self) -> Iterator[Samples]:
        if self._waiting:
            yield from self._flush()
        if self._resampler is not None:
            for piece in self._resampler.end():
                yield _to_int16(piece)

    def _flush(self) -> Iterator[Samples]:
        block = _to_float(np.concatenate(self._waiting, axis=1))
        self._waiting.clear()
        self._size = 0
        mono = self._mixer.mix(block)
        if self._resampler is None:
            yield _to_int16(mono)
        else:
            for piece in self._resampler.run(mono):
                yield _to_int16(piece)

    def _planes(self, frame: AudioFrame) -> Block:
        """[channels, samples]"""
        channels = self.shape[0]
        if self._planar:
            return np.stack([_plane(frame, index, self._dtype, frame.samples) for index in range(channels)])
        packed = _plane(frame, 0, self._dtype, frame.samples * channels)
        planes: Block = packed.reshape(-1, channels).T
        return planes


class _Mixer:
    def __init__(self, channels: int, ramp: int) -> None:
        self._signs = np.ones(channels, np.float32)
        self._weights: Floats | None = None  # [channels], at the end of what was mixed
        self._ramp = ramp  # samples

    def mix(self, block: Floats) -> Floats:
        """[channels, samples] -> [samples]"""
        if len(block) == 1:
            alone: Floats = block[0]
            return alone
        before, weights = self._weights, self._weigh(block)
        mono = weights @ block
        if before is not None and not np.array_equal(before, weights):
            start = block[:, : self._ramp]
            share = np.linspace(0, 1, start.shape[1], endpoint=False, dtype=np.float32)
            mono[: len(share)] = before @ start * (1 - share) + mono[: len(share)] * share
        self._weights = weights
        return mono

    def _weigh(self, block: Floats) -> Floats:
        norms = np.linalg.norm(block, axis=1)
        loudest = int(norms.argmax())
        if norms[loudest] == 0:  # silence: as it was
            return self._signs / np.float32(len(block)) if self._weights is None else self._weights
        products = block @ block[loudest] * self._signs * self._signs[loudest]
        opposed = products < OPPOSED * norms * norms[loudest]
        self._signs = np.where(opposed, -self._signs, self._signs).astype(np.float32)
        return self._signs * np.float32(norms[loudest] / norms.sum())


class _Resampler:
    """FFmpeg's, of mono."""

    def __init__(self, rate: int, to: int) -> None:
        self._resampler = AudioResampler(format="fltp", layout="mono", rate=to)
        self._rate, self._to = rate, to
        self._taken = self._given = 0  # samples
        self._piece = max(MIN_BLOCK, rate)  # samples that are resampled at once: what comes of them can be much more

    def run(self, mono: Floats) -> Iterator[Floats]:
        for first in range(0, len(mono), self._piece):
            yield from self._run(mono[first : first + self._piece])

    def end(self) -> Iterator[Floats]:
        length = -(-self._taken * self._to // self._rate)  # rounded up
        if self._taken < TAIL:
            yield from self._cut(self._run(np.zeros(TAIL, np.float32)), length)
        yield from self._cut(self._pull(None), length)

    def _run(self, mono: Floats) -> Iterator[Floats]:
        frame = AudioFrame.from_ndarray(np.ascontiguousarray(mono)[None], "fltp", "mono")
        frame.sample_rate = self._rate
        self._taken += len(mono)
        return self._pull(frame)

    def _pull(self, frame: AudioFrame | None) -> Iterator[Floats]:
        for made in self._resampler.resample(frame):
            piece: Floats = _plane(made, 0, np.dtype(np.float32), made.samples)
            self._given += len(piece)
            yield piece

    def _cut(self, pieces: Iterator[Floats], length: int) -> Iterator[Floats]:
        """Without what is beyond so many samples of the whole stream."""
        for piece in pieces:
            over = self._given - length
            if over < len(piece):
                yield piece[: len(piece) - max(0, over)]


def _plane(frame: AudioFrame, index: int, dtype: "np.dtype[Any]", count: int) -> Block:
    """[count] of one block of a frame's memory. `frame.planes`, and so `to_ndarray`, reads past the frame's pointers
    where it has eight planes and more: each is asked for by its number."""
    plane: Any = AudioPlane(frame, index)
    return np.frombuffer(memoryview(plane), dtype, count)


def _to_float(block: Block) -> Floats:
    """-1…1. What is beyond is cut off, what is no number silence."""
    dtype = block.dtype
    if dtype.kind == "f":
        floats: Floats = block.clip(-1, 1).astype(np.float32, copy=False)
        return np.nan_to_num(floats, copy=False) if np.isnan(floats.sum()) else floats
    if dtype.kind == "u":
        return (block.astype(np.float32) - np.float32(128)) / np.float32(128)
    return block.astype(np.float32) / np.float32(2.0 ** (dtype.itemsize * 8 - 1))


def _to_int16(mono: Floats) -> Samples:
    return np.clip(np.rint(mono * 32768), -32768, 32767).astype(np.int16)
