"""Turns begin and end, whatever the pieces that they come in."""

import pytest

from pipelines.audio.features import SAMPLE_RATE
from pipelines.audio.live.turns import Began, Ended, TurnDetector
from pipelines.audio.vad import FRAME
from pipelines.messages.audio import TurnDetection
from tests.pipelines.audio.speech_probabilities import probabilities


def test_turns_begin_and_end_in_alternation_whatever_the_pieces() -> None:
    speaking = probabilities((1, 0), (2, 1), (0.3, 0), (1, 0.9), (2, 0), (0.03, 1), (1, 0), (1, 1), (1, 0))
    whole = TurnDetector(TurnDetection(silence_duration_ms=500)).update(speaking, 0)
    assert [type(each) for each in whole] == [Began, Ended, Began, Ended]
    assert whole[0].speech / SAMPLE_RATE == pytest.approx(1.0, abs=0.06)
    assert whole[1].speech / SAMPLE_RATE == pytest.approx(4.3, abs=0.06)  # 300 ms are no end, 30 ms no beginning
    assert (whole[1].seen - whole[1].speech) / SAMPLE_RATE == pytest.approx(0.5, abs=0.04)
    pieces = TurnDetector(TurnDetection(silence_duration_ms=500))
    bitwise = [each for i in range(len(speaking)) for each in pieces.update(speaking[i : i + 1], i * FRAME)]
    assert bitwise == whole
