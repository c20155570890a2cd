"""What the gateway and an audio worker say to each other. Times are seconds of the audio, unless named otherwise.

`StreamItem`s travel inside `Feed` frames, each as one MessagePack message.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct, field

from metrics.timeline import Timeline
from pipelines.messages.base import Count, Item, Options, Request, Said

# --- options ----------------------------------------------------------------------------------------------------------


class AudioOptions(Options, frozen=True, kw_only=True):
    """The `[models.audio]` table of an audio model."""

    compute_type: str | None = None  # CTranslate2's; None: int8 on a CPU, float16 on a GPU
    beam_size: Count = 5
    max_batch: Count = 8  # windows decoded in one step
    max_streams: Count = 8  # live streams open at once
    max_seconds: Count = 2 * 3600  # decoded length of a file
    max_buffer_seconds: Count = 600  # audio that a live stream may hold uncommitted
    window: Literal["adaptive", "full"] = "adaptive"  # encode only what was spoken, or 30 s always


# --- limits -----------------------------------------------------------------------------------------------------------

SpeechThreshold = Annotated[float, Meta(ge=0, le=1)]  # probability from which a frame is speech
SilenceMs = Annotated[int, Meta(ge=32, le=10_000)]  # a pause of this length ends a turn, or may end a window
PaddingMs = Annotated[int, Meta(ge=0, le=5_000)]  # kept before speech
Rate = Annotated[int, Meta(ge=8_000, le=96_000)]  # Hz
AudioTemperature = Annotated[float, Meta(ge=0, le=1)]

# --- requests ---------------------------------------------------------------------------------------------------------


class TranscriptionRequest(Request, frozen=True, kw_only=True, omit_defaults=True, tag="transcription"):
    """A file in the spool."""

    path: str
    task: Literal["transcribe", "translate"] = "transcribe"
    language: str | None = None  # None: detected
    prompt: str = ""  # text that could have come before: its style and spelling are followed
    hotwords: str = ""  # words that are likely to be said
    temperature: AudioTemperature | None = None  # None or 0: the fallback ladder
    timestamps: bool = False  # segments and words have times; without, there is one segment a window
    vad_threshold: SpeechThreshold = 0.5
    vad_silence_ms: SilenceMs = 500
    vad_padding_ms: PaddingMs = 500  # of silence that is kept before speech


class TurnDetection(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Server-side detection of where someone's turn to speak begins and ends."""

    threshold: SpeechThreshold = 0.5
    prefix_padding_ms: PaddingMs = 300
    silence_duration_ms: SilenceMs = 500


class StreamRequest(Request, frozen=True, kw_only=True, omit_defaults=True, tag="speech_stream"):
    """A live stream; it goes on until `End`."""

    encoding: Literal["pcm16", "pcmu", "pcma"] = "pcm16"  # little-endian | G.711 mu-law | G.711 A-law
    rate: Rate = 24_000
    language: str | None = None
    prompt: str = ""
    turn_detection: TurnDetection | None = TurnDetection()  # None: the client commits by itself
    words: bool = False  # finals carry word times


class Audio(Item, frozen=True, tag="audio"):
    """Mono samples in the stream's encoding, whole ones."""

    data: bytes


class Commit(Item, frozen=True, tag="commit"):
    """End the turn, or make one of what has been sent."""

    event_id: str | None = None


class Clear(Item, frozen=True, tag="clear"):
    """Forget what has not been committed."""


class Configure(Item, frozen=True, tag="configure"):
    """From here on the stream is as this says. Answered by `Configured`, or by a `Refusal`: it stays as it was."""

    to: StreamRequest
    event_id: str | None = None


class End(Item, frozen=True, tag="end"):
    """Nothing more comes: finish what there is."""


StreamItem = Audio | Commit | Clear | Configure | End

decode_item = msgspec.msgpack.Decoder(StreamItem).decode

# --- events of a file -------------------------------------------------------------------------------------------------


class Word(Struct, frozen=True, array_like=True):
    text: str  # as written, without the space before it
    start: float
    end: float
    probability: float


class Segment(Struct, frozen=True, array_like=True):
    """A sentence, or what there is of one. `text` begins with its space where the language has spaces."""

    start: float
    end: float
    text: str
    tokens: list[int]
    seek: int  # where its window starts, in hundredths of a second
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    words: list[Word] = []


class Media(Said, frozen=True, tag="media"):
    """A file was decoded; the first event of its transcription."""

    seconds: float

    def stamp(self, timeline: Timeline, received: float) -> None:
        timeline.media_seconds = self.seconds


class Passage(Said, frozen=True, tag="passage"):
    """The text of one window. Windows come in the order of the file; their segments add up to its transcript."""

    segments: list[Segment]  # none where nothing was said
    until: float  # the file is transcribed up to here
    language: str
    tokens: int  # generated


# --- events of a live stream ------------------------------------------------------------------------------------------
# Items are numbered from 0, in the order in which their speech began.


class SpeechStarted(Said, frozen=True, tag="speech_started"):
    item: int
    at: float  # padding included


class SpeechStopped(Said, frozen=True, tag="speech_stopped"):
    item: int
    at: float


class Committed(Said, frozen=True, tag="committed"):
    item: int


class Cleared(Said, frozen=True, tag="cleared"):
    """What was not committed is forgotten."""


class Configured(Said, frozen=True, tag="configured"):
    """A `Configure` holds from here on."""


class Partial(Said, frozen=True, tag="partial"):
    """More of an item. All `delta`s of an item, its final's included, add up to its transcript."""

    item: int
    delta: str  # words that will not change any more
    tentative: str  # words after them that may
    start: float
    end: float
    latency: float | None = None  # for an item's first: seconds from the arrival of its first speech to now


class Final(Said, frozen=True, tag="final"):
    item: int
    delta: str
    transcript: str
    start: float
    end: float
    seconds: float  # of audio
    words: list[Word] = field(default_factory=list)
    latency: float | None = None  # seconds from the arrival of its last speech to now


class ItemFailed(Said, frozen=True, tag="item_failed"):
    """An item has no transcript; the stream goes on."""

    item: int
    message: str


class Refusal(Said, frozen=True, tag="refusal"):
    """Something a client sent has no effect; the stream goes on."""

    code: str
    message: str
    event_id: str | None = None
    param: str | None = None  # of a `Configure`: the field of StreamRequest


class Acknowledged(Said, frozen=True, tag="acknowledged"):
    """Flow control: so much audio has been taken in since the stream's start. Clients are not told."""

    seconds: float


AudioEvent = (
    Media
    | Passage
    | SpeechStarted
    | SpeechStopped
    | Committed
    | Cleared
    | Configured
    | Partial
    | Final
    | ItemFailed
    | Refusal
    | Acknowledged
)
