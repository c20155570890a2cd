"""`/v1/audio/stream`: the plain form of live transcription. Binary frames of audio in, these as JSON text out."""

from typing import Literal

import msgspec
from msgspec import Struct

from gateway.errors import ErrorDetail
from pipelines.messages.audio import PaddingMs, Rate, SilenceMs, SpeechThreshold


class StreamQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The query string."""

    model: str = ""  # empty: the first audio model
    language: str | None = None
    prompt: str = ""
    format: Literal["pcm16", "pcmu", "pcma"] = "pcm16"
    rate: Rate | None = None  # Hz; absent: 16000, G.711 8000
    turns: Literal["server", "client"] = "server"  # client: it commits by itself
    threshold: SpeechThreshold = 0.5
    prefix_padding_ms: PaddingMs = 300
    silence_duration_ms: SilenceMs = 500


class Control(Struct, frozen=True, forbid_unknown_fields=True):
    """A text frame of the client."""

    type: Literal["commit", "clear", "end"]


class WireWord(Struct, frozen=True):
    word: str
    start: float
    end: float
    probability: float


class ReadyMessage(Struct, frozen=True, tag_field="type", tag="ready"):
    model: str


class SpeechMessage(Struct, frozen=True, tag_field="type", tag="speech"):
    """A turn has begun."""

    item: int
    start: float


class PartialMessage(Struct, frozen=True, tag_field="type", tag="partial"):
    item: int
    text: str  # `committed` and `tentative`, together
    committed: str  # will not change any more
    tentative: str
    start: float
    end: float


class FinalMessage(Struct, frozen=True, tag_field="type", tag="final"):
    item: int
    text: str
    start: float
    end: float
    words: list[WireWord]


class ClearedMessage(Struct, frozen=True, tag_field="type", tag="cleared"):
    pass


class DoneMessage(Struct, frozen=True, tag_field="type", tag="done"):
    """All that was sent is transcribed; the server closes."""


class ErrorMessage(Struct, frozen=True, tag_field="type", tag="error"):
    error: ErrorDetail


SpeechEvent = ReadyMessage | SpeechMessage | PartialMessage | FinalMessage | ClearedMessage | DoneMessage | ErrorMessage

decode_control = msgspec.json.Decoder(Control).decode
encode_message = msgspec.json.Encoder().encode
