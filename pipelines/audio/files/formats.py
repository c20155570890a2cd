"""Transcripts as captions. Pure text, shared by the server and the command line."""

import html
from collections.abc import Iterable, Iterator, Sequence

from pipelines.messages.audio import Segment


def text_of(segments: Iterable[Segment]) -> str:
    """The transcript that segments add up to."""
    return "".join(segment.text for segment in segments).strip()


def srt(segments: Sequence[Segment], first: int = 1) -> str:
    """SubRip, its cues numbered from `first`. Times have hours always, and a comma."""
    cues = (
        f"{number}\n{_time(start, ',')} --> {_time(end, ',')}\n{text}\n"
        for number, (start, end, text) in enumerate(_cues(segments), first)
    )
    return "\n".join(cues)


def vtt(segments: Sequence[Segment], *, header: bool = True) -> str:
    """WebVTT (https://www.w3.org/TR/webvtt1/). Times have hours always, and a dot. Without `header`: more cues."""
    cues = (
        f"{_time(start, '.')} --> {_time(end, '.')}\n{html.escape(text, quote=False)}\n"
        for start, end, text in _cues(segments)
    )
    return "\n".join(("WEBVTT\n", *cues) if header else cues)


def count_cues(segments: Sequence[Segment]) -> int:
    return sum(1 for _ in _cues(segments))


def _cues(segments: Sequence[Segment]) -> Iterator[tuple[int, int, str]]:
    """(start, end, text) in whole milliseconds, rounded down so that no cue outlasts its clip; none is empty."""
    for segment in segments:
        text = " ".join(segment.text.split()).replace("-->", "→")
        if text:
            start, end = int(segment.start * 1000 + 1e-6), int(segment.end * 1000 + 1e-6)
            yield start, max(end, start + 1), text


def _time(milliseconds: int, mark: str) -> str:
    seconds, rest = divmod(milliseconds, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}{mark}{rest:03}"
