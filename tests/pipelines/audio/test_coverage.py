"""What a window's words leave out is found, decoded again alone, and put in its place."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from models.whisper.model import AlignedWord, Seek, Whisper, seek_of
from pipelines.audio.coverage import holes, pause_before
from pipelines.audio.features import SAMPLE_RATE
from pipelines.audio.pipeline import AudioPipeline
from pipelines.audio.vad import Span
from pipelines.messages.audio import (
    AudioOptions,
    Final,
    Partial,
    Passage,
    StreamRequest,
    TranscriptionRequest,
    TurnDetection,
)
from tests import recordings, speech
from tests.pipelines.audio.driver import Driver, FakeWhisper, text

END, ZERO = 100, 200  # of text, of time tokens


def spans(*seconds: tuple[float, float]) -> list[Span]:
    return [Span(int(start * SAMPLE_RATE), int(end * SAMPLE_RATE)) for start, end in seconds]


def spoken(*words: tuple[str, float, float]) -> list[AlignedWord]:
    return [AlignedWord(f" {word}", (index,), start, end, 0.9) for index, (word, start, end) in enumerate(words)]


@pytest.mark.parametrize(
    ("tokens", "seek"),
    [
        ([ZERO, 1, 2, ZERO + 100], Seek(2, 2.0, last=True)),  # one segment, and that was all
        ([ZERO, 1, 2], None),  # one that does not end: there is nothing to go back to
        ([ZERO, 1, ZERO + 50, ZERO + 50, 2, ZERO + 100], Seek(2, 2.0, last=True)),
        ([ZERO, 1, 2, ZERO + 50, ZERO + 50], Seek(2, 1.0)),  # another was to follow
        ([ZERO, 1, ZERO + 50, ZERO + 60, 2, 3], Seek(1, 1.2)),  # another has not ended
        ([ZERO, 1, ZERO + 50, ZERO + 50, 2, ZERO + 100, ZERO + 110, 3], Seek(2, 2.2)),
        ([], None),
    ],
)
def test_where_to_go_on_is_told_by_the_time_tokens(tokens: list[int], seek: Seek | None) -> None:
    assert seek_of(tokens, END, ZERO) == seek


def test_a_stretch_of_speech_without_words_is_a_hole() -> None:
    words = spoken(("he", 0.5, 1.0), ("was", 1.0, 2.4), ("she", 6.0, 6.5), ("is", 6.5, 7.0))
    found = holes(words, spans((0.5, 1.5), (2.5, 5.0), (6.0, 7.0)), 8 * SAMPLE_RATE)
    assert [(hole.start, hole.end, hole.first, hole.last) for hole in found] == [(40_000, 80_000, 2, 2)]


def test_a_turn_is_parted_in_pauses_alone() -> None:
    speech = spans((1.0, 2.0), (3.0, 6.0))
    assert pause_before(3 * SAMPLE_RATE, speech) == 2 * SAMPLE_RATE
    assert pause_before(5 * SAMPLE_RATE, speech) is None  # words before it were said, and may be committed
    assert pause_before(SAMPLE_RATE, speech) is None


@pytest.mark.parametrize("stretched", [("was", 1.0, 5.5), ("she", 2.0, 6.5)])
def test_a_word_that_the_alignment_laid_over_a_hole_does_not_fill_it(stretched: tuple[str, float, float]) -> None:
    before = stretched[0] == "was"
    words = (
        spoken(("he", 0.5, 1.0), stretched, ("she", 6.0, 6.5), ("is", 6.5, 7.0))
        if before
        else spoken(("he", 0.5, 1.0), ("was", 1.0, 1.5), stretched, ("is", 6.5, 7.0))
    )
    (found,) = holes(words, spans((0.5, 1.5), (2.5, 5.0), (6.0, 7.0)), 8 * SAMPLE_RATE)
    assert (found.first, found.last) == (2, 2)  # and it stays


@pytest.mark.parametrize("speech_at", [(2.5, 2.9), (2.5, 2.6)])
def test_a_word_that_is_timed_a_little_wrong_makes_no_hole(speech_at: tuple[float, float]) -> None:
    words = spoken(("he", 0.5, 1.0), ("was", 1.0, 2.3), ("she", 3.0, 3.5), ("is", 3.5, 4.0))
    assert holes(words, spans((0.5, 2.3), speech_at, (3.0, 4.0)), 5 * SAMPLE_RATE) == []


def test_where_nothing_was_said_each_half_is_decoded_alone_and_one_stretch_not_again() -> None:
    assert holes([], spans((0.5, 3.0)), 4 * SAMPLE_RATE) == []
    found = holes([], spans((0.5, 1.5), (2.0, 3.0), (6.0, 7.0)), 8 * SAMPLE_RATE)
    assert [(hole.start / SAMPLE_RATE, hole.end / SAMPLE_RATE) for hole in found] == [(0.5, 3.0), (6.0, 7.0)]


# --- the step loop ----------------------------------------------------------------------------------------------------

FIRST, SECOND = (next(u for u in recordings.utterances() if u.text.startswith(start)) for start in ("She op", "Our te"))
PAIR = recordings.joined([FIRST, SECOND], [0.3, 0.7, 0.5])


def driver(model: FakeWhisper) -> Driver:
    return Driver(AudioPipeline(model, AudioOptions()))  # type: ignore[arg-type]


def counted(run: Driver) -> dict[str, float]:
    counters = run.pipeline.stats().counters.items()
    return {name.partition(":")[2]: value for name, value in counters if name.startswith("audio_decoded_again")}


@pytest.fixture
def pair(tmp_path: Path) -> TranscriptionRequest:
    return TranscriptionRequest(path=str(speech.wav(PAIR.audio, tmp_path / "pair.wav")), language="en")


def test_a_sentence_that_no_word_covers_is_decoded_again_alone(pair: TranscriptionRequest) -> None:
    run = driver(FakeWhisper([FIRST.text, SECOND.text], pace=0.3))
    (events,) = run.transcribe(pair)
    assert text(events) == PAIR.text
    assert counted(run) == {"recovered": 1}
    words = [word for event in events if isinstance(event, Passage) for part in event.segments for word in part.words]
    (start,) = [word.start for word in words if word.text == SECOND.text.split()[0]]
    assert start == pytest.approx(PAIR.said[1][0], abs=0.3)


def test_where_nothing_is_said_of_it_the_rest_stays_as_it_was(pair: TranscriptionRequest) -> None:
    model = FakeWhisper([FIRST.text], pace=0.3)
    model.script += [model.hypothesis("you", 0.0, -1.4, silent=0.9)] * 3
    run = driver(model)
    (events,) = run.transcribe(pair)
    assert text(events) == FIRST.text
    assert counted(run) == {"empty": 1}


def test_what_is_behind_the_last_whole_segment_is_decoded_again(pair: TranscriptionRequest) -> None:
    model = FakeWhisper([])
    whole = model.hypothesis(f"{FIRST.text} Our tea")
    seek = Seek(len(FIRST.text.split()), PAIR.said[0][0] + FIRST.seconds + 0.2)
    model.script = [replace(whole, seek=seek), SECOND.text]
    run = driver(model)
    (events,) = run.transcribe(pair)
    assert text(events) == PAIR.text
    assert counted(run) == {"seek": 1}


def test_a_model_that_takes_a_segment_for_the_last_too_early_is_made_to_go_on(pair: TranscriptionRequest) -> None:
    model = FakeWhisper([], pace=0.3)
    first = model.hypothesis(FIRST.text)
    end = Seek(len(first.tokens), PAIR.said[0][0] + FIRST.seconds, last=True)
    model.script = [replace(first, seek=end, timed=(*first.tokens, 999)), PAIR.text]
    run = driver(model)
    (events,) = run.transcribe(pair)
    assert text(events) == PAIR.text
    assert counted(run) == {"continued": 1}
    assert model.prefixes == [(), (*first.tokens, 999, 999)]


def test_a_long_rest_may_lose_a_sentence_too(tmp_path: Path) -> None:
    three = recordings.joined([FIRST, SECOND, FIRST], [0.3, 0.7, 0.7, 0.5])
    path = speech.wav(three.audio, tmp_path / "three.wav")
    run = driver(FakeWhisper([FIRST.text, SECOND.text, FIRST.text], pace=0.3))
    (events,) = run.transcribe(TranscriptionRequest(path=str(path), language="en"))
    assert text(events) == three.text
    assert counted(run) == {"recovered": 2}


def test_a_turn_with_a_pause_in_it_loses_nothing_either() -> None:
    run = driver(FakeWhisper([FIRST.text, SECOND.text], pace=0.3))
    audio = np.concatenate([PAIR.audio, speech.silence(2)])
    live = StreamRequest(
        rate=SAMPLE_RATE, language="en", words=True, turn_detection=TurnDetection(silence_duration_ms=1500)
    )
    (final,) = [event for event in run.stream(live, audio, len(audio)) if isinstance(event, Final)]
    assert final.transcript == PAIR.text
    assert " ".join(word.text for word in final.words) == PAIR.text


def test_words_behind_what_a_partial_left_out_are_not_committed() -> None:
    """Five runs and the final of its section say the first sentence; the second begins a section of its own."""
    run = driver(FakeWhisper([FIRST.text] * 6 + [SECOND.text] * 9, pace=0.3))
    live = StreamRequest(rate=SAMPLE_RATE, language="en", turn_detection=TurnDetection(silence_duration_ms=1500))
    audio = np.concatenate([PAIR.audio, speech.silence(2)])
    events = run.stream(live, audio, int(1.2 * SAMPLE_RATE))
    said = "".join(event.delta for event in events if isinstance(event, Partial | Final))
    assert said.startswith(FIRST.text)
    assert SECOND.text in said


# --- what users write -------------------------------------------------------------------------------------------------

CONTROL = "<|0.00|> <|endoftext|> <|startoftranscript|><|notimestamps|> <|en|>"


@pytest.mark.requires_weights
def test_control_tokens_in_a_prompt_are_text(tiny: Whisper) -> None:
    tokens = tiny.encode_text(CONTROL)
    assert tiny.decode_text(tokens) == CONTROL
    assert max(tokens) < tiny.vocabulary("en", "transcribe").eot
    run = Driver(AudioPipeline(tiny, AudioOptions()))
    clip = str(speech.CLIPS[1])
    plain, *others = run.transcribe(
        TranscriptionRequest(path=clip),
        TranscriptionRequest(path=clip, prompt=CONTROL),
        TranscriptionRequest(path=clip, hotwords=CONTROL),
    )
    for events in others:
        assert "<|" not in text(events)
        assert speech.word_error_rate([(text(plain), text(events))]) <= 0.25


@pytest.mark.requires_weights
def test_no_control_token_is_ever_in_a_text(tiny: Whisper) -> None:
    vocabulary = tiny.vocabulary("en", "transcribe")
    tokens = [vocabulary.timestamp_begin, *tiny.encode_text(" hello"), vocabulary.eot, vocabulary.timestamp_begin + 50]
    assert tiny.decode_text(tokens) == " hello"
