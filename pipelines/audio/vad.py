"""Where someone speaks: Silero's voice activity detector (https://github.com/snakers4/silero-vad), its state carried.

The model takes 32 ms at a time, each with the last 4 ms before it, and a recurrent state.
"""

from dataclasses import dataclass
from pathlib import Path

import faster_whisper
import numpy as np
import numpy.typing as npt
import onnxruntime

from pipelines.audio.features import SAMPLE_RATE, Floats, Samples

FRAME = 512  # samples
FRAME_SECONDS = FRAME / SAMPLE_RATE
CONTEXT = 64  # samples
CHUNK_FRAMES = 2000  # frames in one run: bounds the memory that a long file takes
HYSTERESIS = 0.15  # speech goes on until its probability is this much under the threshold


class Silero:
    """The session: immutable, any thread."""

    def __init__(self) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.enable_cpu_mem_arena = False
        options.log_severity_level = 4
        path = Path(faster_whisper.__file__).parent / "assets" / "silero_vad_v6.onnx"
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def probabilities(self, audio: Samples) -> Floats:
        """[samples] -> [frames], the last frame filled up with silence."""
        detector = Detector(self)
        whole = detector.process(audio)
        return np.concatenate([whole, detector.process(np.zeros(FRAME, np.int16))[:1]]) if len(audio) % FRAME else whole


class Detector:
    """One stream's state. One thread at a time."""

    def __init__(self, silero: Silero) -> None:
        self._session = silero.session
        self._h = np.zeros((1, 1, 128), np.float32)
        self._c = np.zeros((1, 1, 128), np.float32)
        self._context = np.zeros(CONTEXT, np.float32)
        self._rest = np.zeros(0, np.int16)

    def process(self, audio: Samples) -> Floats:
        """Speech probabilities of the frames that `audio` completes."""
        audio = np.concatenate([self._rest, audio])
        frames = len(audio) // FRAME
        self._rest = audio[frames * FRAME :]
        found: list[Floats] = []
        for first in range(0, frames, CHUNK_FRAMES):
            last = min(frames, first + CHUNK_FRAMES)
            found.append(self._run(audio[first * FRAME : last * FRAME]))
        return np.concatenate(found) if found else np.zeros(0, np.float32)

    def _run(self, audio: Samples) -> Floats:
        padded = np.concatenate([self._context, audio.astype(np.float32) / np.float32(32768)])
        self._context = padded[-CONTEXT:]
        frames = np.lib.stride_tricks.sliding_window_view(padded, CONTEXT + FRAME)[::FRAME]
        outputs = self._session.run(None, {"input": np.ascontiguousarray(frames), "h": self._h, "c": self._c})
        probabilities: Floats = np.asarray(outputs[0], np.float32)
        self._h, self._c = np.asarray(outputs[1]), np.asarray(outputs[2])
        return probabilities


@dataclass(frozen=True, slots=True)
class Span:
    """Samples [start, end) of the audio."""

    start: int
    end: int

    @property
    def samples(self) -> int:
        return self.end - self.start


def speech_spans(probabilities: npt.NDArray[np.float32], threshold: float, silence_ms: float) -> list[Span]:
    """Stretches of speech, in order: those less than `silence_ms` apart are one. Unpadded, on frame borders."""
    keep = silence_ms / 1000 / FRAME_SECONDS
    spans: list[Span] = []
    start: int | None = None
    for index, above in enumerate(_speaking(probabilities, threshold)):
        if above and start is None:
            start = index
        elif not above and start is not None:
            spans.append(Span(start, index))
            start = None
    if start is not None:
        spans.append(Span(start, len(probabilities)))
    joined: list[Span] = []
    for span in spans:
        if joined and span.start - joined[-1].end < keep:
            joined[-1] = Span(joined[-1].start, span.end)
        else:
            joined.append(span)
    return [Span(span.start * FRAME, span.end * FRAME) for span in joined]


def _speaking(probabilities: npt.NDArray[np.float32], threshold: float) -> npt.NDArray[np.bool_]:
    """Schmitt trigger: on at the threshold, off below it less the hysteresis; between the two, as it was."""
    off = max(threshold - HYSTERESIS, 0.01)
    decided = np.where(probabilities >= threshold, 1, np.where(probabilities < off, 0, -1))
    known = np.flatnonzero(decided >= 0)
    if not len(known):
        return np.zeros(len(probabilities), np.bool_)
    last = np.searchsorted(known, np.arange(len(probabilities)), side="right") - 1
    return np.where(last >= 0, decided[known[np.maximum(last, 0)]], 0).astype(np.bool_)
