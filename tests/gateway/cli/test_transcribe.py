"""Where transcripts of several files go, and how far the bar is. The command itself is in tests/integration."""

import asyncio
import io
from pathlib import Path
from time import monotonic
from typing import cast

import msgspec
import pysubs2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.progress import Progress as Bars

from gateway.api.audio.request import Format
from gateway.cli.transcribe import Progress, TranscribeOptions, _one
from gateway.cli.transcribe_console import ProgressEstimate, _Printer
from gateway.cli.transcripts import Captions, output_names
from gateway.requests.fleet import Fleet
from metrics.registry import Registry
from pipelines.kinds import metrics_by_kind
from pipelines.messages.audio import Segment
from tests.gateway.scripted import SETTINGS, ScriptedBackend, ScriptedFleet


def segment(start: float, end: float, text: str) -> Segment:
    return Segment(start, end, text, [], 0, 0.0, 0.0, 1.0, 0.0)


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (["a/talk.wav", "b/talk.wav"], ["talk.srt", "talk-2.srt"]),
        (["talk.wav", "talk.mp3", "Talk.ogg"], ["talk.srt", "talk-2.srt", "Talk-3.srt"]),
        (["a/talk.wav", "b/talk.wav", "talk-2.wav"], ["talk.srt", "talk-3.srt", "talk-2.srt"]),
        (["talk.wav", "talk.wav"], ["talk.srt", "talk-2.srt"]),
        (["v1.2.wav", "v1.3.wav"], ["v1.2.srt", "v1.3.srt"]),
    ],
)
def test_each_file_has_a_name_of_its_own(files: list[str], names: list[str]) -> None:
    assert output_names([Path(file) for file in files], "srt") == names


@given(st.lists(st.sampled_from(["a", "A", "a-2", "a-3", "b"]), max_size=8))
def test_no_two_names_are_equal(stems: list[str]) -> None:
    names = output_names([Path(f"{number}/{stem}.wav") for number, stem in enumerate(stems)], "text")
    assert len({name.casefold() for name in names}) == len(stems)


@pytest.mark.parametrize("format", ["srt", "vtt"])
def test_captions_of_several_files_are_one_text(format: Format) -> None:
    captions = Captions(format)
    files = [
        ([segment(0.5, 1.0, " One."), segment(1.0, 2.0, " Two.")], 3.0),
        ([], 10.0),  # nothing was said
        ([segment(0.25, 1.0, " Three."), segment(1.0, 1.5, "  ")], 2.0),
        ([segment(0.0, 1.0, " Four.")], 1.0),
    ]
    text = "".join(captions.add(segments, seconds) for segments, seconds in files)
    cues = pysubs2.SSAFile.from_string(text, format_=format)
    assert [(cue.start, cue.end, cue.plaintext) for cue in cues] == [
        (500, 1000, "One."),
        (1000, 2000, "Two."),
        (13250, 14000, "Three."),
        (15000, 16000, "Four."),
    ]
    assert text.count("WEBVTT") == (format == "vtt")
    if format == "srt":
        assert [line for line in text.splitlines() if line.isdecimal()] == ["1", "2", "3", "4"]
    assert "\n\n\n" not in text


class Printed:
    """A printer whose files are told by the test, in any order."""

    def __init__(self, files: list[str], format: Format, output: Path | None = None) -> None:
        self.console = Console(file=io.StringIO(), width=200)
        self.bars = Bars(console=self.console, disable=True)
        paths = [Path(file) for file in files]
        self.printer = _Printer(self.bars, TranscribeOptions(format), output, paths, follow=False)

    def end(self, number: int, text: str) -> Progress:
        file = self.printer.files[number]
        file.seconds = file.until = 2.0
        file.segments = [segment(0.0, 1.0, f" {text}")]
        file.output = f"{text}\n"
        file.changed(file, "")
        return file

    def fail(self, number: int, seconds: float) -> None:
        file = self.printer.files[number]
        file.seconds = seconds
        file.error = "the worker was lost"
        file.changed(file, "")

    @property
    def told(self) -> str:
        assert isinstance(self.console.file, io.StringIO)
        return self.console.file.getvalue()


def test_files_are_printed_in_order_whichever_ends_first(capsys: pytest.CaptureFixture[str]) -> None:
    printed = Printed(["a/x.wav", "b/x.wav"], "srt")
    printed.end(1, "second")
    assert capsys.readouterr().out == ""
    printed.end(0, "first")
    said = capsys.readouterr().out
    assert said.startswith("1\n00:00:00,000 --> 00:00:01,000\nfirst\n\n2\n00:00:02,000 --> 00:00:03,000\nsecond\n")


def test_captions_behind_a_file_that_failed_are_still_in_time(capsys: pytest.CaptureFixture[str]) -> None:
    printed = Printed(["a.wav", "b.wav", "c.wav"], "srt")
    printed.fail(0, 60.0)
    printed.fail(1, 0.0)  # no length is known of it
    printed.end(2, "third")
    assert capsys.readouterr().out == "1\n00:01:00,000 --> 00:01:01,000\nthird\n"


async def test_a_file_whose_model_says_nothing_is_an_error_of_that_file() -> None:
    fleet = ScriptedFleet(Registry(metrics_by_kind()))
    fleet.serve(msgspec.structs.replace(SETTINGS, kind="audio", first_event_timeout_s=0.01), [ScriptedBackend()])
    file = Progress(Path("a.wav"), lambda *_: None)
    await _one(cast(Fleet, fleet), Registry(metrics_by_kind()), TranscribeOptions(), file, asyncio.Semaphore())
    assert "said nothing" in (file.error or "")


def test_files_of_one_name_are_all_written_and_that_is_told(tmp_path: Path) -> None:
    printed = Printed(["a/x.wav", "b/x.wav", "c/ümlaut.wav"], "text", tmp_path)
    for number, text in enumerate(("first", "second", "dritter é")):
        assert printed.end(number, text).error is None
    assert (tmp_path / "x.txt").read_text() == "first\n"
    assert (tmp_path / "x-2.txt").read_text() == "second\n"
    assert (tmp_path / "ümlaut.txt").read_bytes() == "dritter é\n".encode()
    assert f"b/x.wav: written to {tmp_path / 'x-2.txt'}" in printed.told


def test_a_file_that_can_not_be_written_is_an_error_of_that_file(tmp_path: Path) -> None:
    printed = Printed(["a.wav", "b.wav"], "text", tmp_path)
    (tmp_path / "a.txt").mkdir()
    assert "can't be written" in (printed.end(0, "first").error or "")
    assert printed.end(1, "second").error is None
    assert "a.wav: " in printed.told


def test_the_bar_moves_between_two_leaps_and_never_back() -> None:
    estimate = ProgressEstimate(0.0)
    assert estimate.at(3.0) == 0  # nothing is known yet
    for until in (30.0, 60.0):  # of windows that came together
        estimate.reached(until, 4.0)
    assert estimate.at(4.0) == 60
    assert estimate.at(5.0) == 75
    assert estimate.at(8.0) == estimate.at(20.0) == 120  # for as long as the last leap took
    estimate.reached(100.0, 9.0)
    assert estimate.at(9.0) == 120
    assert estimate.at(13.0) > 120


def test_a_bar_moves_while_nothing_new_is_said() -> None:
    printed = Printed(["a.wav"], "text")
    (file,) = printed.printer.files
    file.seconds = 100.0
    file.changed(file, "")
    (task,) = printed.bars.tasks
    assert task.total is None  # it goes to and fro
    now = monotonic()
    printed.printer._estimates[0] = estimate = ProgressEstimate(now - 10)
    estimate.reached(10.0, now)
    file.until = 10.0
    printed.printer._move(file)
    assert task.total == 100
    assert 10 < task.completed <= 20
    printed.end(0, "done")
    assert task.completed == task.total
