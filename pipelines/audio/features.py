"""Log-mel spectra, as Whisper was trained on them: 25 ms windows every 10 ms, 80 or 128 mel bands, 8 decades at most.

Numerically OpenAI's `log_mel_spectrogram` of the audio padded with silence, whose own frames are not computed.
"""

import numpy as np
import numpy.typing as npt
from faster_whisper.feature_extractor import FeatureExtractor

Floats = npt.NDArray[np.float32]
Samples = npt.NDArray[np.int16]

SAMPLE_RATE = 16_000  # Hz
N_FFT = 400
HOP = 160  # samples between frames
FRAMES_PER_SECOND = SAMPLE_RATE // HOP
MAX_FRAMES = 3000  # 30 s, the encoder's whole context
FLOOR = np.float32(1e-10)


class LogMel:
    """Immutable; any thread."""

    def __init__(self, n_mels: int) -> None:
        self._filters: Floats = FeatureExtractor.get_mel_filters(SAMPLE_RATE, N_FFT, n_mels=n_mels).astype(np.float32)
        self._window: Floats = np.hanning(N_FFT + 1)[:-1].astype(np.float32)

    def __call__(self, audio: Samples, frames: int) -> Floats:
        """[samples] -> [n_mels, frames]: the first `frames` hundredths of a second, silence after the audio's end."""
        audio = audio[: frames * HOP + N_FFT // 2]
        spoken = min(frames, (len(audio) + N_FFT // 2) // HOP + 1)  # frames that see any of the audio
        padded = np.zeros(N_FFT // 2 + max(len(audio), spoken * HOP + N_FFT), np.float32)
        padded[N_FFT // 2 : N_FFT // 2 + len(audio)] = audio
        padded /= np.float32(32768)
        padded[: N_FFT // 2] = padded[N_FFT : N_FFT // 2 : -1]  # reflected at the start, as if centred

        view = np.lib.stride_tricks.sliding_window_view(padded, N_FFT)[: spoken * HOP : HOP]
        spectrum = np.fft.rfft(view * self._window, axis=1)
        power = np.abs(spectrum) ** 2  # as the reference has it, to the last bit
        mel = np.full((self._filters.shape[0], frames), FLOOR, np.float32)
        np.maximum(self._filters @ power.T, FLOOR, out=mel[:, :spoken])
        log = np.log10(mel, out=mel)
        np.maximum(log, log.max() - 8, out=log)
        return (log + np.float32(4)) / np.float32(4)
