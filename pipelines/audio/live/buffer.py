"""The recent past of a live stream: samples, speech probabilities, and when they arrived."""

from bisect import bisect_left
from collections import deque

import numpy as np

from pipelines.audio.features import Floats, Samples
from pipelines.audio.live.chunks import AudioChunk
from pipelines.audio.vad import FRAME


class AudioBuffer:
    """Positions are samples since the start of the stream. What lies before `start` is forgotten."""

    def __init__(self) -> None:
        self.start = 0
        self.end = 0
        self._samples = np.zeros(0, np.int16)  # its capacity doubles; [0, end - start) is valid
        self._probabilities: list[float] = []  # of frames from `_first_frame` on
        self._first_frame = 0
        self._arrivals: deque[tuple[int, float]] = deque()  # (position up to which, when)

    @property
    def frames(self) -> int:
        """Position after the last frame whose probability is known."""
        return (self._first_frame + len(self._probabilities)) * FRAME

    def append(self, chunk: AudioChunk) -> None:
        used = self.end - self.start
        needed = used + len(chunk.samples)
        if needed > len(self._samples):
            grown = np.zeros(max(needed, 2 * len(self._samples)), np.int16)
            grown[:used] = self._samples[:used]
            self._samples = grown
        self._samples[used:needed] = chunk.samples
        self.end += len(chunk.samples)
        self._probabilities += chunk.probabilities.tolist()
        self._arrivals.append((self.end, chunk.arrived))

    def samples(self, start: int, end: int) -> Samples:
        """A copy of what is there of [start, end)."""
        start, end = max(start, self.start), min(end, self.end)
        return self._samples[start - self.start : end - self.start].copy()

    def probabilities(self, start: int, end: int) -> Floats:
        """Of the frames that begin in [start, end), start rounded down to a frame."""
        first = max(0, start // FRAME - self._first_frame)
        return np.array(self._probabilities[first : max(first, end // FRAME - self._first_frame)], np.float32)

    def arrival(self, position: int) -> float | None:
        """When the sample before `position` came in."""
        index = bisect_left(self._arrivals, position, key=lambda arrival: arrival[0])
        return self._arrivals[index][1] if index < len(self._arrivals) else None

    def forget(self, before: int) -> None:
        """Let go of what lies before a position; memory is given back in large pieces."""
        before = min(before, self.end)
        if before <= self.start:
            return
        used = self.end - before
        if 4 * used < len(self._samples):
            self._samples = self._samples[before - self.start : self.end - self.start].copy()
        else:
            self._samples[:used] = self._samples[before - self.start : self.end - self.start].copy()
        self.start = before
        frames = before // FRAME - self._first_frame
        if frames > 0:
            del self._probabilities[:frames]
            self._first_frame += frames
        while self._arrivals and self._arrivals[0][0] < before:
            self._arrivals.popleft()
