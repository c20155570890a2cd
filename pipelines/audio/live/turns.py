"""Where a turn to speak begins and ends, from speech probabilities as they come."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipelines.audio.features import SAMPLE_RATE
from pipelines.audio.vad import FRAME, HYSTERESIS
from pipelines.messages.audio import TurnDetection

ONSET = 2  # frames of speech in a row that begin a turn: a click is shorter


@dataclass(frozen=True, slots=True)
class Began:
    """Samples since the start of the stream."""

    speech: int  # where the speech is heard first
    seen: int  # where this was known


@dataclass(frozen=True, slots=True)
class Ended:
    speech: int  # where it was heard last
    seen: int


class TurnDetector:
    """One stream's. Turns begin and end in alternation."""

    def __init__(self, options: TurnDetection) -> None:
        self.options = options
        self.speaking = False
        self.last_speech = 0  # end of the last frame of speech
        self._run = 0  # frames of speech in a row, before a turn

    def update(self, probabilities: npt.NDArray[np.float32], position: int) -> list[Began | Ended]:
        """Frames of `FRAME` samples, the first at sample `position` of the stream."""
        options = self.options
        off = max(options.threshold - HYSTERESIS, 0.01)
        patience = options.silence_duration_ms * SAMPLE_RATE // 1000
        found: list[Began | Ended] = []
        for probability in probabilities.tolist():
            end = position + FRAME
            if not self.speaking:
                self._run = self._run + 1 if probability >= options.threshold else 0
                if self._run >= ONSET:
                    self.speaking, self._run = True, 0
                    self.last_speech = end
                    found.append(Began(end - ONSET * FRAME, end))
            elif probability >= off:
                self.last_speech = end
            elif end - self.last_speech >= patience:
                self.speaking = False
                found.append(Ended(self.last_speech, end))
            position = end
        return found

    def stop(self) -> None:
        """The turn was ended by other means."""
        self.speaking, self._run = False, 0
