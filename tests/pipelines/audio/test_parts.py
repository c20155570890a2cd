"""The parts that need no model: cuts, turns, agreement, captions, G.711, the buffer, the queue."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from models.whisper.model import AlignedWord, Hypothesis
from pipelines.audio.agreement import Agreement
from pipelines.audio.cuts import MAX_SECONDS, Cut, cut
from pipelines.audio.features import MAX_FRAMES, SAMPLE_RATE, LogMel
from pipelines.audio.files.formats import srt, vtt
from pipelines.audio.live.buffer import AudioBuffer
from pipelines.audio.live.chunks import A_LAW, MU_LAW, AudioChunk
from pipelines.audio.live.turns import Began, Ended, TurnDetector
from pipelines.audio.stitching import segments
from pipelines.audio.vad import FRAME, Span, speech_spans
from pipelines.audio.windows import Lane, Stage, Window, WindowQueue
from pipelines.base import Ticket
from pipelines.messages.audio import Segment, TurnDetection
from tests import speech

FRAMES_A_SECOND = SAMPLE_RATE / FRAME


def probabilities(*stretches: tuple[float, float]) -> np.ndarray:
    """(seconds, probability), one after the other."""
    return np.concatenate([np.full(round(s * FRAMES_A_SECOND), p, np.float32) for s, p in stretches])


# --- cuts -------------------------------------------------------------------------------------------------------------


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


# --- turns ------------------------------------------------------------------------------------------------------------


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


# --- agreement --------------------------------------------------------------------------------------------------------


def spoken(text: str) -> list[tuple[str, tuple[int, ...]]]:
    return [(f" {word}", (hash(word) % 1000,)) for word in text.split()]


def test_words_two_runs_agree_on_are_committed_but_for_the_last() -> None:
    agreement = Agreement()
    assert agreement.update(spoken("and mister"), 1)[0] == []
    fresh, rest = agreement.update(spoken("And Mister, John Dash"), 2)
    assert (fresh, rest) == (spoken("And"), spoken("Mister, John Dash"))
    fresh, rest = agreement.update(spoken("Mister John Dashwood had then"), 3)
    assert fresh == spoken("Mister John")
    assert agreement.until == 2  # what was committed had been heard by then
    assert agreement.tokens == tuple(t for _, tokens in spoken("And Mister John") for t in tokens)


@given(st.lists(st.lists(st.sampled_from("abc"), max_size=5), max_size=8))
def test_committed_words_never_change(runs: list[list[str]]) -> None:
    agreement = Agreement()
    before: list[object] = []
    for position, run in enumerate(runs):
        agreement.update(spoken(" ".join(run)), position)
        assert agreement.committed[: len(before)] == before
        before = list(agreement.committed)


# --- stitching and captions -------------------------------------------------------------------------------------------


class Letters:
    """Stands for a model: one token a word."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def words(self, *timed: tuple[str, float, float]) -> list[AlignedWord]:
        found = []
        for text, start, end in timed:
            self._texts.append(text)
            found.append(AlignedWord(text, (len(self._texts) - 1,), start, end, 0.9))
        return found

    def decode_text(self, tokens: list[int]) -> str:
        return "".join(self._texts[token] for token in tokens)

    def hypothesis(self) -> Hypothesis:
        return Hypothesis(tuple(range(len(self._texts))), "".join(self._texts), -0.1, 0.0, 0.0)


def test_words_become_sentences_and_none_is_lost() -> None:
    model = Letters()
    words = model.words(
        (" And", 0.0, 0.4), (" Mr", 0.4, 0.6), (".", 0.6, 0.6), (" John", 0.6, 1.0), (" left", 1.0, 1.4),
        (".", 1.4, 1.4), (' "', 1.4, 1.4), ("Why", 1.4, 3.9), ("?", 3.9, 3.9), (" Who", 6.0, 6.4), (" knows", 6.4, 7.5),
    )  # fmt: skip
    where = Cut((Span(0, 8 * SAMPLE_RATE),))
    speaking = [Span(0, int(1.5 * SAMPLE_RATE)), Span(int(3.5 * SAMPLE_RATE), 8 * SAMPLE_RATE)]
    found = segments(model, model.hypothesis(), words, where, speaking)  # type: ignore[arg-type]
    assert [each.text for each in found] == [" And Mr. John left.", ' "Why?', " Who knows"]
    assert "".join(each.text for each in found) == model.hypothesis().text
    assert [word.text for word in found[0].words] == ["And", "Mr.", "John", "left."]
    assert found[1].words[0].start == 3.5  # not in the silence that the alignment stretched it over


@given(st.lists(st.tuples(st.text("ab .,?¿", min_size=1, max_size=4), st.floats(0, 30), st.floats(0, 30)), max_size=25))
@example([("?", 0.0, 0.0), (" ", 0.0, 0.0), ("a", 1.0, 0.0)])
def test_times_are_ordered_and_inside_the_window(timed: list[tuple[str, float, float]]) -> None:
    model = Letters()
    words = model.words(*timed)
    where = Cut((Span(16_000, 160_000), Span(320_000, 400_000)))
    found = segments(model, model.hypothesis(), words, where, [Span(20_000, 100_000), Span(330_000, 390_000)])  # type: ignore[arg-type]
    if model.hypothesis().text.strip() and any(segment.text.strip() for segment in found):
        said = "".join(segment.text for segment in found).split()
        assert said == [word for word in "".join(text for text, _, _ in timed).split() if word in said][: len(said)]
    edge = 1.0
    for segment in found:
        assert segment.text.strip()
        for word in segment.words:
            assert edge <= word.start <= word.end <= 25.0
            edge = word.end


def segment(start: float, end: float, text: str) -> Segment:
    return Segment(start, end, text, [], 0, 0.0, -0.1, 1.0, 0.0)


def test_captions_carry_milliseconds_and_hours() -> None:
    parts = [segment(0, 0.9999999, " One --> <two>"), segment(1, 1, "  "), segment(3599.9999, 3661.5, " Three & four ")]
    assert srt(parts) == (
        "1\n00:00:00,000 --> 00:00:00,999\nOne → <two>\n\n2\n00:59:59,999 --> 01:01:01,500\nThree & four\n"
    )
    assert vtt(parts) == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:00.999\nOne → &lt;two&gt;\n\n"
        "00:59:59.999 --> 01:01:01.500\nThree &amp; four\n"
    )
    assert vtt([]) == "WEBVTT\n"
    assert srt([]) == ""


# --- input ------------------------------------------------------------------------------------------------------------


def test_g711_is_the_standards() -> None:
    # ITU-T G.191's reference decoder
    assert [int(MU_LAW[code]) for code in (0x00, 0x7F, 0x80, 0xFF, 0x8F, 0x0F)] == [-32124, 0, 32124, 0, 16764, -16764]
    assert [int(A_LAW[code]) for code in (0x55, 0xD5, 0x2A, 0xAA, 0x80, 0x00)] == [-8, 8, -32256, 32256, 5504, -5504]


def test_the_buffer_forgets_and_still_finds() -> None:
    buffer = AudioBuffer()
    for index in range(100):
        chunk = np.full(1600, index, np.int16)
        buffer.append(AudioChunk(chunk, np.full(3, index / 100, np.float32), float(index)))
        buffer.forget(buffer.end - 16_000)
    assert buffer.start == 9 * 16_000
    assert set(buffer.samples(0, 10**9)) == set(range(90, 100))
    assert buffer.samples(150_000, 150_010).tolist() == [93] * 10
    assert buffer.arrival(buffer.end) == 99.0
    assert buffer.arrival(buffer.end + 1) is None
    assert len(buffer._samples) < 4 * 17_600


def test_mel_of_a_short_clip_is_that_of_the_clip_with_silence_after_it() -> None:
    from faster_whisper.feature_extractor import FeatureExtractor

    audio = speech.samples(speech.CLIPS[1])
    padded = np.pad(audio.astype(np.float32) / 32768, (0, MAX_FRAMES * 160 - len(audio)))
    reference = FeatureExtractor()(padded)[:, :MAX_FRAMES]
    np.testing.assert_array_equal(LogMel(80)(audio, MAX_FRAMES), reference)
    for samples in (0, 1, 150, 4000):
        assert LogMel(80)(audio[:samples], 1500).shape == (80, 1500)


# --- the queue --------------------------------------------------------------------------------------------------------


def window(lane: Lane, queued: float, seconds: float = 5.0, id: str = "r") -> Window:
    audio = np.zeros(int(seconds * SAMPLE_RATE), np.int16)
    return Window(Ticket(id, "interactive", 0.0), None, lane, 0, audio, queued, language="en")  # type: ignore[arg-type]


def test_finals_come_before_partials_before_files_until_those_have_waited() -> None:
    queue = WindowQueue()
    file, partial, final = window(Lane.FILE, 0.0), window(Lane.PARTIAL, 0.5), window(Lane.FINAL, 0.6)
    queue.put([file, partial, final])
    assert queue.group(1) == [final]
    late = window(Lane.FINAL, 2.5)
    queue.remove(final)
    queue.remove(partial)
    queue.put([late])
    assert queue.group(1) == [file]


def test_only_windows_of_one_shape_share_a_step_and_few_beside_live_speech() -> None:
    queue = WindowQueue()
    short, long = [window(Lane.FILE, i) for i in range(6)], [window(Lane.FILE, 0.5, seconds=20)]
    queue.put([*short, *long])
    assert list(queue.group(8)) == short
    decoding = short[0]
    decoding.stage = Stage.DECODE
    assert list(queue.group(8)) == [decoding]
    queue.put([window(Lane.PARTIAL, 100.0)])
    decoding.stage = Stage.ENCODE
    assert len(queue.group(8)) == 2
    assert [w.frames for w in (short[0], long[0], window(Lane.FINAL, 0, seconds=28))] == [1500, 2400, 3000]
