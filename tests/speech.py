"""The committed clips, what is said in them, and how far a transcript is from it."""

import re
import wave
from collections.abc import Iterable, Sequence
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt

FOLDER = Path(__file__).parent / "data" / "speech"
RATE = 16_000
MAX_WER = 0.045  # of the embedded model over the clips: three words

Samples = npt.NDArray[np.int16]

TRANSCRIPTS = dict(line.split("\t") for line in (FOLDER / "transcripts.tsv").read_text().splitlines())
CLIPS = [FOLDER / name for name in TRANSCRIPTS]


def transcript(clip: Path) -> str:
    return TRANSCRIPTS[clip.name]


def samples(clip: Path) -> Samples:
    with wave.open(str(clip)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2")


def silence(seconds: float, rate: int = RATE) -> Samples:
    return np.zeros(int(seconds * rate), np.int16)


def noise(seconds: float, level: float = 300.0) -> Samples:
    return np.random.default_rng(0).normal(0, level, int(seconds * RATE)).astype(np.int16)


def joined(gap: float) -> Samples:
    """All clips, with `gap` seconds of silence before, between and after them."""
    return np.concatenate([silence(gap), *(part for clip in CLIPS for part in (samples(clip), silence(gap)))])


def words(text: str) -> list[str]:
    """Lower case, no punctuation; titles written out."""
    text = text.lower().replace("mr.", "mister").replace("mr ", "mister ")
    return re.sub(r"[^\w']+", " ", text).split()


def edits(reference: Sequence[object], hypothesis: Sequence[object]) -> int:
    """Levenshtein distance."""
    row = list(range(len(hypothesis) + 1))
    for i, expected in enumerate(reference, 1):
        diagonal, row[0] = row[0], i
        for j, found in enumerate(hypothesis, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (expected != found))
    return row[-1]


def word_error_rate(pairs: Iterable[tuple[str, str]]) -> float:
    """Of (reference, hypothesis) pairs together."""
    errors = total = 0
    for reference, hypothesis in pairs:
        errors += edits(words(reference), words(hypothesis))
        total += len(words(reference))
    return errors / total


def encode(
    audio: npt.NDArray[np.generic],
    path: Path,
    codec: str,
    *,
    rate: int = RATE,
    layout: str = "mono",
    format: str | None = None,
    options: dict[str, str] | None = None,
    bit_rate: int | None = None,
) -> Path:
    """Write [channels, samples] int16 or float32 (or [samples] for one channel) as a media file."""
    planes = np.atleast_2d(audio)
    with av.open(str(path), "w", format=format, options=options or {}) as container:
        stream = container.add_stream(codec, rate=rate, layout=layout)
        if bit_rate is not None:
            stream.bit_rate = bit_rate
        kind = "fltp" if planes.dtype.kind == "f" else "s16p"
        size = 960
        for first in range(0, planes.shape[1], size):
            frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(planes[:, first : first + size]), kind, layout)
            frame.sample_rate = rate
            frame.pts = first
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def resampled(audio: Samples, rate: int, source_rate: int = RATE) -> Samples:
    resampler = av.AudioResampler("s16", "mono", rate)
    frame = av.AudioFrame.from_ndarray(audio[None], "s16", "mono")
    frame.sample_rate = source_rate
    return np.concatenate([part.to_ndarray()[0] for part in (*resampler.resample(frame), *resampler.resample(None))])


def wav(audio: Samples, path: Path, rate: int = RATE) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(audio.astype("<i2").tobytes())
    return path
