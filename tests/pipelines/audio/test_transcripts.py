"""What the embedded model makes of real speech: word error rates, equality with the reference, times."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from faster_whisper import WhisperModel

from models.files.source import resolve
from models.whisper.model import Whisper
from pipelines.audio.files.formats import text_of
from pipelines.audio.pipeline import AudioPipeline
from pipelines.messages.audio import (
    AudioOptions,
    Final,
    Media,
    Partial,
    Passage,
    Segment,
    StreamRequest,
    TranscriptionRequest,
    TurnDetection,
)
from tests import speech
from tests.pipelines.audio.driver import Driver, text

pytestmark = pytest.mark.requires_weights


@pytest.fixture(scope="module")
def run(tiny: Whisper) -> Driver:
    return Driver(AudioPipeline(tiny, AudioOptions()))


@pytest.fixture(scope="module")
def alone(run: Driver) -> list[str]:
    """Each clip's transcript, one request at a time."""
    return [text(run.transcribe(TranscriptionRequest(path=str(clip)))[0]) for clip in speech.CLIPS]


def wer(transcripts: list[str]) -> float:
    return speech.word_error_rate(zip(map(speech.transcript, speech.CLIPS), transcripts, strict=True))


def test_the_clips_one_at_a_time(alone: list[str]) -> None:
    assert wer(alone) <= speech.MAX_WER


def test_eight_at_once_are_what_they_are_alone(run: Driver, alone: list[str]) -> None:
    clips = [*speech.CLIPS, *speech.CLIPS[:3]]
    before = len(run.reports)
    together = [text(events) for events in run.transcribe(*(TranscriptionRequest(path=str(clip)) for clip in clips))]
    assert together == [*alone, *alone[:3]]
    assert ("decode", 8) in run.reports[before:]


def test_a_prompt_of_one_request_is_not_in_the_next(run: Driver, alone: list[str]) -> None:
    first = TranscriptionRequest(path=str(speech.CLIPS[0]))
    run.transcribe(TranscriptionRequest(path=str(speech.CLIPS[0]), prompt="MISTER JOHN DASHWOOD, ESQ."), first)
    assert text(run.transcribe(first)[0]) == alone[0]


def test_thirty_second_windows_say_what_the_reference_says(tiny: Whisper, alone: list[str]) -> None:
    reference = WhisperModel(str(resolve("embedded:whisper-tiny.en")), device="cpu", compute_type="int8", cpu_threads=2)
    full = Driver(AudioPipeline(tiny, AudioOptions(window="full")))
    ours = [text(events) for events in full.transcribe(*(TranscriptionRequest(path=str(c)) for c in speech.CLIPS))]
    theirs = []
    for clip in speech.CLIPS:
        audio = speech.samples(clip).astype(np.float32) / 32768
        # The reference pads the spectrum of a short clip with what is no silence; given the silence, it agrees.
        padded = np.pad(audio, (0, 30 * speech.RATE - len(audio)))
        found, _ = reference.transcribe(padded, language="en", beam_size=5, condition_on_previous_text=False)
        theirs.append("".join(segment.text for segment in found).strip())
    assert ours == theirs
    adaptive = list(zip(ours, alone, strict=True))
    assert speech.word_error_rate(adaptive) <= speech.MAX_WER


@pytest.fixture(scope="module")
def joined(run: Driver, tmp_path_factory: pytest.TempPathFactory) -> tuple[float, list[Segment]]:
    """The clips in one file, with 3 s of silence around each: (seconds, segments)."""
    path = speech.wav(speech.joined(3.0), tmp_path_factory.mktemp("joined") / "joined.wav")
    (events,) = run.transcribe(TranscriptionRequest(path=str(path), timestamps=True))
    media = events[0]
    assert isinstance(media, Media)
    return media.seconds, [segment for e in events if isinstance(e, Passage) for segment in e.segments]


def test_one_long_file_loses_and_doubles_no_word(joined: tuple[float, list[Segment]]) -> None:
    expected = " ".join(map(speech.transcript, speech.CLIPS))
    assert speech.word_error_rate([(expected, text_of(joined[1]))]) <= speech.MAX_WER


def test_times_are_ordered_and_where_the_words_were_said(joined: tuple[float, list[Segment]]) -> None:
    seconds, segments = joined
    edges = list(itertools.chain.from_iterable((s.start, s.end) for s in segments))
    assert edges == sorted(edges)
    assert edges[-1] <= seconds
    said = [word for segment in segments for word in segment.words]
    assert " ".join(word.text for word in said) == text_of(segments)
    position = 3.0
    for clip in speech.CLIPS:
        length = len(speech.samples(clip)) / speech.RATE
        inside = [word for word in said if position - 0.3 <= word.start <= position + length]
        assert inside[0].text.lower().startswith(speech.transcript(clip).split()[0])
        assert inside[-1].end <= position + length + 0.1
        position += length + 3.0


@pytest.mark.parametrize("silence_ms", [300])
def test_live_speech_is_as_good_as_a_file(tiny: Whisper, silence_ms: int) -> None:
    run = Driver(AudioPipeline(tiny, AudioOptions()))
    request = StreamRequest(rate=16_000, words=True, turn_detection=TurnDetection(silence_duration_ms=silence_ms))
    transcripts = []
    for clip in speech.CLIPS:
        events = run.stream(request, np.concatenate([speech.samples(clip), speech.silence(0.8)]), piece=8_000)
        finals = [event for event in events if isinstance(event, Final)]
        transcripts.append(" ".join(event.transcript for event in finals))
        deltas = "".join(event.delta for event in events if isinstance(event, Partial | Final))
        assert deltas == "".join(event.transcript for event in finals)
        words = [word for event in finals for word in event.words]
        assert " ".join(word.text for word in words) == transcripts[-1]
        assert all(0 <= word.start <= word.end <= len(speech.samples(clip)) / speech.RATE for word in words)
    assert wer(transcripts) <= speech.MAX_WER


def test_speech_in_noise_and_hot_words_over_silence(run: Driver, tmp_path: Path, alone: list[str]) -> None:
    clip = speech.samples(speech.CLIPS[0])
    leading = speech.wav(np.concatenate([speech.silence(20), clip]), tmp_path / "late.wav")
    noisy = speech.wav((clip + speech.noise(len(clip) / speech.RATE, 50)).astype(np.int16), tmp_path / "noisy.wav")
    hushed = speech.wav(speech.noise(5, 20), tmp_path / "hushed.wav")
    found = run.transcribe(
        TranscriptionRequest(path=str(leading)),
        TranscriptionRequest(path=str(noisy)),
        TranscriptionRequest(path=str(hushed), hotwords="Dashwood, Willoughby"),
    )
    assert speech.word_error_rate([(alone[0], text(found[0]))]) <= 0.05
    assert speech.word_error_rate([(speech.transcript(speech.CLIPS[0]), text(found[1]))]) <= 0.1
    assert text(found[2]) == ""
