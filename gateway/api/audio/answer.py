"""`POST /v1/audio/transcriptions` and `/translations`: the answers, in every format."""

import msgspec
from msgspec import UNSET, Struct, UnsetType

from gateway.api.audio.request import Format, Granularity, Task
from gateway.http import sse
from metrics.timeline import Phases
from models.whisper.languages import LANGUAGES
from pipelines.audio.files.formats import srt, text_of, vtt
from pipelines.messages import audio as messages
from pipelines.messages.audio import Media, Passage
from pipelines.messages.base import Said
from pipelines.messages.frames import Done

TEXT = b"text/plain; charset=utf-8"
JSON = b"application/json"


class DurationUsage(Struct, frozen=True, tag_field="type", tag="duration"):
    seconds: float


class Transcription(Struct, frozen=True):
    text: str
    usage: DurationUsage


class WireWord(Struct, frozen=True):
    word: str
    start: float
    end: float


class WireSegment(Struct, frozen=True):
    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float


class VerboseTranscription(Struct, frozen=True):
    task: Task
    language: str  # its English name
    duration: float  # seconds
    text: str
    usage: DurationUsage
    segments: list[WireSegment] | UnsetType = UNSET
    words: list[WireWord] | UnsetType = UNSET


class TextDelta(Struct, frozen=True, tag_field="type", tag="transcript.text.delta"):
    delta: str
    until: float  # seconds of the file that are transcribed
    duration: float  # seconds that it has


class TextSegment(Struct, frozen=True, tag_field="type", tag="transcript.text.segment"):
    id: str
    start: float
    end: float
    text: str


class TextDone(Struct, frozen=True, tag_field="type", tag="transcript.text.done"):
    text: str
    usage: DurationUsage


class _Transcript:
    """What comes of a file, in order."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.language = ""
        self.segments: list[messages.Segment] = []

    def take(self, event: Said) -> list[messages.Segment]:
        """The segments that an event adds."""
        match event:
            case Media(seconds=seconds):
                self.seconds = seconds
            case Passage(segments=segments, language=language):
                self.language = language
                self.segments += segments
                return segments
        return []

    @property
    def usage(self) -> DurationUsage:
        return DurationUsage(round(self.seconds, 3))


class TranscriptionAnswer:
    """One body."""

    streamed = False

    def __init__(self, format: Format, task: Task, granularities: list[Granularity]) -> None:
        self.content_type = TEXT if format in ("text", "srt", "vtt") else JSON
        self._format = format
        self._task: Task = task
        self._granularities: list[Granularity] = granularities or ["segment"]
        self._transcript = _Transcript()

    def render(self, event: Said) -> bytes:
        self._transcript.take(event)
        return b""

    def finish(self, done: Done, spent: Phases) -> bytes:
        whole = self._transcript
        match self._format:
            case "text":
                return f"{text_of(whole.segments)}\n".encode()
            case "srt":
                return srt(whole.segments).encode()
            case "vtt":
                return vtt(whole.segments).encode()
            case "json":
                return _encode(Transcription(text_of(whole.segments), whole.usage))
            case "verbose_json":
                return _encode(self._verbose())

    def _verbose(self) -> VerboseTranscription:
        whole, wanted = self._transcript, self._granularities
        words = [word for segment in whole.segments for word in segment.words]
        return VerboseTranscription(
            task=self._task,
            language=LANGUAGES.get(whole.language, whole.language),
            duration=round(whole.seconds, 3),
            text=text_of(whole.segments),
            usage=whole.usage,
            segments=[_segment(id, each) for id, each in enumerate(whole.segments)] if "segment" in wanted else UNSET,
            words=[WireWord(word.text, word.start, word.end) for word in words] if "word" in wanted else UNSET,
        )


class TranscriptionStream:
    """Server-sent events: text as windows finish, with `segments` their segments too; no `[DONE]`."""

    streamed = True
    content_type = sse.MEDIA_TYPE

    def __init__(self, *, segments: bool) -> None:
        self._with_segments = segments
        self._transcript = _Transcript()
        self._said = ""
        self._number = 0

    def render(self, event: Said) -> bytes:
        found = self._transcript.take(event)
        frames = bytearray()
        delta = "".join(segment.text for segment in found)
        if not self._said:
            delta = delta.lstrip()
        if delta and isinstance(event, Passage):
            self._said += delta
            frames += sse.frame(TextDelta(delta, round(event.until, 3), round(self._transcript.seconds, 3)))
        if self._with_segments:
            for segment in found:
                frames += sse.frame(TextSegment(f"seg_{self._number}", segment.start, segment.end, segment.text))
                self._number += 1
        return bytes(frames)

    def finish(self, done: Done, spent: Phases) -> bytes:
        return sse.frame(TextDone(text_of(self._transcript.segments), self._transcript.usage))


_encode = msgspec.json.Encoder().encode


def _segment(id: int, of: messages.Segment) -> WireSegment:
    return WireSegment(
        id=id,
        seek=of.seek,
        start=of.start,
        end=of.end,
        text=of.text,
        tokens=of.tokens,
        temperature=of.temperature,
        avg_logprob=of.avg_logprob,
        compression_ratio=of.compression_ratio,
        no_speech_prob=of.no_speech_prob,
    )


Answer = TranscriptionAnswer | TranscriptionStream
