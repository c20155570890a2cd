"""What a voice activity detector may say."""

import numpy as np

from pipelines.audio.features import SAMPLE_RATE
from pipelines.audio.vad import FRAME

FRAMES_A_SECOND = SAMPLE_RATE / FRAME


def probabilities(*stretches: tuple[float, float]) -> np.ndarray:
    """(seconds, probability), one after the other."""
    return np.concatenate([np.full(round(s * FRAMES_A_SECOND), p, np.float32) for s, p in stretches])
