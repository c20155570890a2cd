"""The step loop over a model that says what it is told: fallbacks, languages, order, faults, streams."""

from pathlib import Path

import numpy as np
import pytest

from pipelines.audio.pipeline import AudioPipeline
from pipelines.audio.windows import Lane
from pipelines.base import InvalidRequest
from pipelines.messages.audio import (
    Acknowledged,
    Audio,
    AudioOptions,
    Clear,
    Cleared,
    Commit,
    Committed,
    Configure,
    Configured,
    Final,
    ItemFailed,
    Partial,
    Passage,
    Refusal,
    SpeechStarted,
    SpeechStopped,
    StreamRequest,
    TranscriptionRequest,
    TurnDetection,
)
from pipelines.messages.frames import Failed
from tests import speech
from tests.pipelines.audio.driver import Driver, FakeWhisper, text

CLIP = speech.CLIPS[1]
LOOP = "again and " * 40
ALL = " ".join(map(speech.transcript, speech.CLIPS))  # as many words as there are in a window of them


def driver(model: FakeWhisper, **options: object) -> Driver:
    return Driver(AudioPipeline(model, AudioOptions(**options)))  # type: ignore[arg-type]


@pytest.fixture
def long(tmp_path: Path) -> str:
    """Ten clips, 4 s apart: two windows."""
    return str(speech.wav(np.concatenate([speech.joined(4.0)] * 2), tmp_path / "long.wav"))


def english(path: str | Path, **fields: object) -> TranscriptionRequest:
    return TranscriptionRequest(path=str(path), language="en", **fields)  # type: ignore[arg-type]


# --- fallbacks --------------------------------------------------------------------------------------------------------


def test_a_loop_is_decoded_again_at_30_s_then_up_the_temperatures() -> None:
    model = FakeWhisper([LOOP, LOOP, LOOP, "He was not"])
    (events,) = driver(model).transcribe(english(CLIP))
    assert text(events) == "He was not"
    assert [(frames, temperature) for frames, temperature, _ in model.calls] == [
        (1500, 0.0), (3000, 0.0), (3000, 0.2), (3000, 0.4),
    ]  # fmt: skip


def test_where_every_try_fails_the_most_probable_that_does_not_loop_is_taken() -> None:
    model = FakeWhisper([LOOP] * 4)
    model.script += [model.hypothesis("bad", 0.6, -2.0), model.hypothesis("better", 0.8, -1.5), LOOP]
    (events,) = driver(model).transcribe(english(CLIP))
    assert text(events) == "better"


def test_a_given_temperature_is_the_only_one() -> None:
    model = FakeWhisper([LOOP])
    driver(model).transcribe(english(CLIP, temperature=0.7))
    assert [temperature for _, temperature, _ in model.calls] == [0.7]


def test_an_improbable_text_over_no_speech_is_silence() -> None:
    model = FakeWhisper([])
    model.script = [model.hypothesis("you", 0.0, -1.4, silent=0.9)] * 2
    run = driver(model)
    (events,) = run.transcribe(english(CLIP))
    assert text(events) == ""
    assert run.pipeline.stats().counters["audio_silences"] == 1


def test_where_nobody_speaks_the_model_is_not_asked(tmp_path: Path) -> None:
    model = FakeWhisper([])
    for audio in (speech.silence(3), speech.noise(3), speech.silence(0.01)):
        (events,) = driver(model).transcribe(english(speech.wav(audio, tmp_path / "a.wav"), hotwords="gateway"))
        assert text(events) == ""
    assert model.calls == []


# --- languages --------------------------------------------------------------------------------------------------------


def test_a_language_is_told_by_the_first_window_that_is_sure(long: str) -> None:
    model = FakeWhisper(
        [f"eins {ALL}", f"zwei {ALL}"], [{"fr": 0.4, "de": 0.35, "en": 0.25}, {"de": 0.9, "fr": 0.1, "en": 0.0}]
    )
    (events,) = driver(model).transcribe(TranscriptionRequest(path=long))
    assert [event.language for event in events if isinstance(event, Passage)] == ["de", "de"]
    assert text(events) == f"eins {ALL} zwei {ALL}"


def test_where_no_window_is_sure_their_votes_count(long: str) -> None:
    model = FakeWhisper(
        [f"un {ALL}", f"deux {ALL}"], [{"fr": 0.4, "de": 0.35, "en": 0.25}, {"en": 0.45, "fr": 0.4, "de": 0.15}]
    )
    (events,) = driver(model).transcribe(TranscriptionRequest(path=long))
    assert {event.language for event in events if isinstance(event, Passage)} == {"fr"}


@pytest.mark.parametrize("code", ["xx", "English", " "])
def test_what_is_no_language_names_the_codes(code: str) -> None:
    with pytest.raises(InvalidRequest, match=r"de, en, fr|en, de, fr") as refusal:
        driver(FakeWhisper([])).open(TranscriptionRequest(path=str(CLIP), language=code))
    assert refusal.value.param == "language"


def test_hot_words_and_prompt_come_before_the_text() -> None:
    model = FakeWhisper(["x"])
    driver(model).transcribe(english(CLIP, prompt="old words", hotwords="hot"))
    (_, _, (prompt,)) = model.calls[0]
    assert prompt[0] == model.start_of_previous
    assert model.decode_text(prompt[1:4]) == " hot old words"


# --- order and faults -------------------------------------------------------------------------------------------------


def test_windows_of_files_share_batches_and_come_in_order(long: str) -> None:
    model = FakeWhisper([LOOP, f"two {ALL}", f"one {ALL}", "it was a short one"])  # the first is decoded again
    run = driver(model)
    events, other = run.transcribe(english(long), english(CLIP))
    assert text(events) == f"one {ALL} two {ALL}"
    assert text(other) == "it was a short one"
    assert ("encode", 2) in run.reports


def test_a_window_that_breaks_its_step_fails_alone() -> None:
    model = FakeWhisper([RuntimeError("too much"), RuntimeError("too much"), "fine"])
    run = driver(model)
    ids = [run.open(english(clip)) for clip in speech.CLIPS[1:3]]
    run.run()
    assert isinstance(run.events[ids[0]][-1], Failed)
    assert text(run.events[ids[1]]) == "fine"


def test_a_transcript_whose_probability_is_no_number_fails_its_request_alone(long: str) -> None:
    model = FakeWhisper([])
    model.script = [model.hypothesis("one", 0.0, np.nan), model.hypothesis("two", 0.0, np.nan), "fine"]
    run = driver(model)
    broken, other = run.open(english(long)), run.open(english(CLIP))
    run.run()
    failed = [event for event in run.events[broken] if isinstance(event, Failed)]
    assert ([each.code for each in failed], run.events[broken][-1]) == (["invalid_output"], failed[0])
    assert text(run.events[other]) == "fine"
    assert not run.pipeline.busy

    model.script = [model.hypothesis("one", 0.0, np.nan)]
    stream = run.open(LIVE)
    run.feed(stream, Audio(clip_and_silence()))
    run.run()
    end = run.events[stream][-1]
    assert isinstance(end, Failed)
    assert end.code == "invalid_output"


def test_a_flaky_step_costs_nothing() -> None:
    run = driver(FakeWhisper([RuntimeError("once"), "one", "two"]))
    assert [text(events) for events in run.transcribe(*(english(clip) for clip in speech.CLIPS[1:3]))] == ["one", "two"]


def test_abort_leaves_nothing_behind(long: str) -> None:
    run = driver(FakeWhisper([]))
    file = run.open(english(long))
    stream = run.open(StreamRequest(rate=16_000, language="en"))
    run.feed(stream, Audio(speech.samples(CLIP).tobytes()))
    for id in (file, stream, file, "unknown"):
        run.pipeline.abort(id)
    run.feed(stream, Audio(speech.samples(CLIP).tobytes()))
    pipeline = run.pipeline
    assert [
        len(held) for held in (pipeline._files, pipeline._streams, pipeline._preparer.decoders, pipeline._queue)
    ] == [0] * 4


# --- streams ----------------------------------------------------------------------------------------------------------

LIVE = StreamRequest(rate=16_000, language="en", turn_detection=TurnDetection(silence_duration_ms=300))
MANUAL = StreamRequest(rate=16_000, language="en", turn_detection=None)


def clip_and_silence(clip: Path = CLIP) -> bytes:
    return np.concatenate([speech.samples(clip), speech.silence(1.0)]).tobytes()


def kinds(events: list[object]) -> list[str]:
    return [type(event).__name__ for event in events if type(event).__name__ != "Acknowledged"]


def test_a_turn_from_start_to_final() -> None:
    run = driver(FakeWhisper(["he was not"]))
    id = run.open(LIVE)
    run.feed(id, Audio(clip_and_silence()))
    run.run()
    events = run.events[id]
    assert kinds(events) == ["SpeechStarted", "SpeechStopped", "Committed", "Final"]
    (final,) = [event for event in events if isinstance(event, Final)]
    assert (final.transcript, final.delta, final.item) == ("he was not", "he was not", 0)
    assert final.latency is not None


def test_deltas_add_up_to_the_transcript_and_a_final_begins_with_what_was_committed() -> None:
    model = FakeWhisper(["he was", "he was not a", "b c d", "e f", "g h", "i j", "the end"])
    run = driver(model)
    id = run.open(LIVE)
    audio = clip_and_silence(speech.CLIPS[0])
    for first in range(0, len(audio), 19_200):
        run.feed(id, Audio(audio[first : first + 19_200]))
        run.run()
        if len(model.script) < 2:
            model.script.append("more words")
    said = [event for event in run.events[id] if isinstance(event, Partial | Final)]
    final = said[-1]
    assert isinstance(final, Final)
    assert "".join(event.delta for event in said) == final.transcript
    assert any(event.tentative for event in said if isinstance(event, Partial))


def test_commit_in_a_turn_ends_it_and_without_one_is_refused() -> None:
    run = driver(FakeWhisper(["half", "a"]))
    id = run.open(LIVE)
    run.feed(id, Commit("c0"), Audio(speech.samples(CLIP)[: 16_000 * 2].tobytes()), Commit("c1"), Commit("c2"))
    run.run()
    refusals = [event for event in run.events[id] if isinstance(event, Refusal)]
    assert [(each.code, each.event_id) for each in refusals] == [
        ("input_audio_buffer_commit_empty", "c0"), ("input_audio_buffer_commit_empty", "c2"),
    ]  # fmt: skip
    assert [event.transcript for event in run.events[id] if isinstance(event, Final)] == ["half"]


def test_manual_commits_clear_and_overflow() -> None:
    run = driver(FakeWhisper(["the first of them", "and a second one"]), max_buffer_seconds=5)
    id = run.open(MANUAL)
    run.feed(id, Audio(speech.silence(0.05).tobytes()), Commit("short"))
    run.feed(id, Audio(clip_and_silence()), Clear(), Audio(clip_and_silence()), Commit())
    for _ in range(60):
        run.feed(id, Audio(speech.silence(20).tobytes()))
    run.feed(id, Clear(), Audio(clip_and_silence()), Commit(), Audio(speech.silence(1).tobytes()), Commit())
    run.run()
    events = run.events[id]
    assert [event.code for event in events if isinstance(event, Refusal)] == [
        "input_audio_buffer_commit_empty", "input_audio_buffer_overflow",
    ]  # fmt: skip
    assert sum(isinstance(event, Cleared) for event in events) == 2
    assert [event.transcript for event in events if isinstance(event, Final)] == [
        "the first of them",
        "and a second one",
        "",
    ]
    assert [event.item for event in events if isinstance(event, Committed)] == [0, 1, 2]


def test_starts_and_stops_are_paired_and_nothing_is_lost_at_the_end() -> None:
    run = driver(FakeWhisper(["one", "partial", "two"]))
    audio = np.concatenate([speech.samples(CLIP), speech.silence(1), speech.samples(CLIP)[:40_000]])
    events = run.stream(LIVE, audio, piece=len(audio))
    assert [event.item for event in events if isinstance(event, SpeechStarted)] == [0, 1]
    assert [event.item for event in events if isinstance(event, SpeechStopped)] == [0, 1]
    assert [event.transcript for event in events if isinstance(event, Final)] == ["one", "two"]


def test_clear_in_a_turn_ends_its_item_without_a_transcript() -> None:
    run = driver(FakeWhisper(["one"]))
    id = run.open(LIVE)
    run.feed(id, Audio(speech.samples(CLIP)[:30_000].tobytes()), Clear(), Audio(clip_and_silence()))
    run.run()
    assert [event.item for event in run.events[id] if isinstance(event, ItemFailed)] == [0]
    assert [(event.item, event.transcript) for event in run.events[id] if isinstance(event, Final)] == [(1, "one")]


def test_a_change_that_can_not_be_made_leaves_the_stream_as_it_was() -> None:
    run = driver(FakeWhisper(["one", "two"]))
    id = run.open(LIVE)
    run.feed(id, Configure(StreamRequest(rate=8_000, language="xx"), "e1"), Audio(clip_and_silence()))
    run.run()
    (refusal,) = [event for event in run.events[id] if isinstance(event, Refusal)]
    assert (refusal.event_id, refusal.param) == ("e1", "language")
    run.feed(id, Configure(StreamRequest(encoding="pcmu", rate=8_000, language="de", turn_detection=None)))
    run.feed(id, Audio(b"\xff" * 800), Commit())
    run.run()
    assert any(isinstance(event, Configured) for event in run.events[id])
    assert [event.transcript for event in run.events[id] if isinstance(event, Final)] == ["one", ""]


def test_a_turn_too_long_for_a_window_is_cut_and_goes_on_as_one_item() -> None:
    model = FakeWhisper([f"part{number}" for number in range(300)])
    run = driver(model)
    breathless = np.concatenate([speech.samples(clip)[5_000:-5_000] for clip in speech.CLIPS] * 3)
    events = run.stream(
        StreamRequest(rate=16_000, language="en"), np.concatenate([breathless, speech.silence(1)]), 16_000
    )
    finals = [event for event in events if isinstance(event, Final)]
    assert len(finals) < 3
    assert max(event.seconds for event in finals) > 30
    for final in finals:
        mine = [e.delta for e in events if isinstance(e, Partial | Final) and e.item == final.item]
        assert "".join(mine) == final.transcript
    assert max(frames for frames, _, _ in model.calls) <= 3000


def test_a_machine_that_can_not_keep_up_sheds_partials_and_then_holds_the_client_back() -> None:
    run = driver(FakeWhisper([f"part{number}" for number in range(300)]))
    id = run.open(LIVE)
    breathless = np.concatenate([speech.samples(clip)[5_000:-5_000] for clip in speech.CLIPS] * 6)
    assert len(breathless) > 100 * 16_000
    for first in range(0, len(breathless), 8_000):  # nothing is decoded meanwhile
        run.feed(id, Audio(breathless[first : first + 8_000].tobytes()))
    queue = run.pipeline._queue
    assert sum(window.lane is Lane.PARTIAL for window in queue) <= 1
    run.pipeline._said, said = [], run.pipeline._said
    heard = max(event.seconds for event in said if isinstance(event, Acknowledged))
    assert 60 <= heard < len(breathless) / 16_000 - 5
    assert run.pipeline.stats().counters["audio_dropped_partials"] > 10
    run.run()
    run.feed(id, Audio(speech.silence(1).tobytes()))
    run.run()
    assert max(event.seconds for event in run.events[id] if isinstance(event, Acknowledged)) > len(breathless) / 16_000
    partials = [event for event in said + run.events[id] if isinstance(event, Partial | Final)]
    for item in {event.item for event in partials}:
        (final,) = [event for event in partials if isinstance(event, Final) and event.item == item]
        assert "".join(event.delta for event in partials if event.item == item) == final.transcript
