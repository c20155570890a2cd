"""Where the transcripts of several files go: a file each, or one after another."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from gateway.api.audio.request import Format
from pipelines.audio.files.formats import count_cues, srt, vtt
from pipelines.messages.audio import Segment

SUFFIXES: dict[Format, str] = {"text": ".txt", "srt": ".srt", "vtt": ".vtt", "json": ".json", "verbose_json": ".json"}


def output_names(files: Sequence[Path], format: Format) -> list[str]:
    """A name for each file's transcript, of its own: `talk.srt`, and `talk-2.srt` for another one called talk.

    Names that differ in case alone count as equal: on some systems they are.
    """
    suffix = SUFFIXES[format]
    taken = {path.stem.casefold() for path in files}
    given: set[str] = set()
    names: list[str] = []
    for path in files:
        name, number = path.stem, 1
        while name.casefold() in given or (number > 1 and name.casefold() in taken):
            number += 1
            name = f"{path.stem}-{number}"
        given.add(name.casefold())
        names.append(name + suffix)
    return names


class Captions:
    """Captions of files that are played one after another: one numbering, one time."""

    def __init__(self, format: Format) -> None:
        self._format = format
        self._cues = 0
        self._offset = 0.0  # seconds
        self._begun = False

    def add(self, segments: Sequence[Segment], seconds: float) -> str:
        """What the next file, of so many seconds, adds to the text."""
        later = [
            msgspec.structs.replace(each, start=each.start + self._offset, end=each.end + self._offset)
            for each in segments
        ]
        captions = srt(later, self._cues + 1) if self._format == "srt" else vtt(later, header=not self._begun)
        separated = f"\n{captions}" if self._begun and captions else captions
        self._begun = self._begun or bool(captions)
        self._cues += count_cues(later)
        self.skip(seconds)
        return separated

    def skip(self, seconds: float) -> None:
        """The next file, of so many seconds, adds no captions: those of the files behind it are still in time."""
        self._offset += seconds
