"""Long audio is cut where nobody speaks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.audio.cuts import MAX_SECONDS, cut
from pipelines.audio.features import SAMPLE_RATE
from pipelines.audio.vad import FRAME, speech_spans
from tests.pipelines.audio.speech_probabilities import probabilities


def test_silence_is_cut_out_and_times_are_found_again() -> None:
    found = cut(probabilities((4, 0), (3, 1), (6, 0), (2, 1), (5, 0)), 20 * SAMPLE_RATE)
    (window,) = found
    assert len(window.spans) == 2
    assert window.samples / SAMPLE_RATE == pytest.approx(3 + 2 + 4 * 0.5, abs=0.1)
    assert window.locate(0.5) == pytest.approx(4.0, abs=0.05)
    assert window.locate(4.5) == pytest.approx(13.0, abs=0.05)  # the second stretch begins 0.5 s into its piece
    assert window.locate(1e9) == window.end
    audio = np.arange(20 * SAMPLE_RATE, dtype=np.int64).astype(np.int16)
    np.testing.assert_array_equal(window.take(audio)[:5], audio[window.spans[0].start :][:5])


@pytest.mark.parametrize("padding", [0, 200, 2000])
def test_as_much_silence_as_is_asked_for_is_kept_before_speech(padding: int) -> None:
    (window,) = cut(probabilities((4, 0), (3, 1), (6, 0)), 13 * SAMPLE_RATE, padding_ms=padding)
    assert window.start == pytest.approx(4 - padding / 1000, abs=0.05)
    assert window.end == pytest.approx(7.5, abs=0.05)


@given(
    st.lists(st.tuples(st.floats(0.05, 40), st.sampled_from([0.0, 0.2, 0.6, 1.0])), min_size=1, max_size=12),
    st.sampled_from([20.0, MAX_SECONDS]),
)
def test_every_frame_of_speech_is_in_exactly_one_window(stretches: list[tuple[float, float]], target: float) -> None:
    speaking = probabilities(*stretches)
    samples = len(speaking) * FRAME
    cuts = cut(speaking, samples, target=target)
    covered = np.zeros(samples, np.int8)
    for each in cuts:
        assert each.samples <= target * SAMPLE_RATE
        for span in each.spans:
            assert 0 <= span.start < span.end <= samples
            covered[span.start : span.end] += 1
    assert covered.max(initial=0) <= 1
    for span in speech_spans(speaking, 0.5, 500):
        if span.samples >= 3 * FRAME:
            assert covered[span.start : span.end].all()


def test_a_long_stretch_is_cut_where_the_voice_dips() -> None:
    found = cut(probabilities((14, 1), (0.4, 0.55), (20, 1)), int(34.4 * SAMPLE_RATE), target=20)
    assert found[0].end == pytest.approx(14.2, abs=0.3)
