"""Spectra are those of the reference."""

import numpy as np

from pipelines.audio.features import MAX_FRAMES, LogMel
from tests import speech


def test_mel_of_a_short_clip_is_that_of_the_clip_with_silence_after_it() -> None:
    from faster_whisper.feature_extractor import FeatureExtractor

    audio = speech.samples(speech.CLIPS[1])
    padded = np.pad(audio.astype(np.float32) / 32768, (0, MAX_FRAMES * 160 - len(audio)))
    reference = FeatureExtractor()(padded)[:, :MAX_FRAMES]
    np.testing.assert_array_equal(LogMel(80)(audio, MAX_FRAMES), reference)
    for samples in (0, 1, 150, 4000):
        assert LogMel(80)(audio[:samples], 1500).shape == (80, 1500)
