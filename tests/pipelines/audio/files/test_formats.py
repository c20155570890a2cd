"""Captions."""

from pipelines.audio.files.formats import srt, vtt
from pipelines.messages.audio import Segment


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
