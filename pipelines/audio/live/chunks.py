"""A live stream's input: bytes in its encoding -> 16 kHz samples and their speech probabilities."""

from dataclasses import dataclass
from time import monotonic

import numpy as np
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler

from pipelines.audio.features import SAMPLE_RATE, Floats, Samples
from pipelines.audio.vad import Detector, Silero
from pipelines.messages.audio import StreamRequest


@dataclass(frozen=True, slots=True)
class AudioChunk:
    """A chunk of a stream, as it joins what came before. `probabilities` are of the frames that it completes."""

    samples: Samples
    probabilities: Floats
    arrived: float  # monotonic


class ChunkDecoder:
    """One stream's state of resampling and of speech detection. One thread at a time."""

    def __init__(self, silero: Silero, request: StreamRequest) -> None:
        self._detector = Detector(silero)
        self._request = request
        self._resampler = _resampler()

    def configure(self, request: StreamRequest) -> AudioChunk:
        """Another encoding from here on; returns the rest of what came in the old one."""
        rest = self.flush()
        self._request = request
        return rest

    def decode(self, data: bytes) -> AudioChunk:
        arrived = monotonic()
        samples = _decode(data, self._request.encoding)
        if self._request.rate != SAMPLE_RATE and len(samples):
            frame = AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
            frame.sample_rate = self._request.rate
            samples = _joined(self._resampler.resample(frame))
        return AudioChunk(samples, self._detector.process(samples), arrived)

    def flush(self) -> AudioChunk:
        """The samples that the resampler holds back."""
        arrived = monotonic()
        samples = np.zeros(0, np.int16)
        if self._request.rate != SAMPLE_RATE:
            samples = _joined(self._resampler.resample(None))
            self._resampler = _resampler()
        return AudioChunk(samples, self._detector.process(samples), arrived)


def _resampler() -> AudioResampler:
    return AudioResampler(format="s16", layout="mono", rate=SAMPLE_RATE)


def _joined(frames: list[AudioFrame]) -> Samples:
    return np.concatenate([np.zeros(0, np.int16), *(frame.to_ndarray()[0] for frame in frames)])


def _decode(data: bytes, encoding: str) -> Samples:
    match encoding:
        case "pcmu":
            return MU_LAW[np.frombuffer(data, np.uint8)]
        case "pcma":
            return A_LAW[np.frombuffer(data, np.uint8)]
        case _:
            return np.frombuffer(data[: len(data) // 2 * 2], "<i2")


def _mu_law() -> Samples:
    """ITU-T G.711, table 2: all 256 codes."""
    code = ~np.arange(256, dtype=np.int32) & 0xFF
    magnitude = (((code & 0x0F) << 3) + 0x84 << ((code & 0x70) >> 4)) - 0x84
    return np.where(code & 0x80, -magnitude, magnitude).astype(np.int16)


def _a_law() -> Samples:
    """ITU-T G.711, table 1: all 256 codes."""
    code = np.arange(256, dtype=np.int32) ^ 0x55
    segment = (code & 0x70) >> 4
    base = ((code & 0x0F) << 4) + 8
    magnitude = np.where(segment == 0, base, (base + 0x100) << np.maximum(segment - 1, 0))
    return np.where(code & 0x80, magnitude, -magnitude).astype(np.int16)


MU_LAW, A_LAW = _mu_law(), _a_law()
