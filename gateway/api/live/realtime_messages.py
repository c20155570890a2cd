"""`/v1/realtime?intent=transcription`: what goes over the socket, in OpenAI's words.

In a `session.update` an absent field stays as it was and null clears it.
"""

from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from gateway.api.audio.answer import DurationUsage
from pipelines.messages.audio import PaddingMs, Rate, SilenceMs, SpeechThreshold

# --- client -> server -------------------------------------------------------------------------------------------------


class AudioFormat(Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["audio/pcm", "audio/pcmu", "audio/pcma"] = "audio/pcm"
    rate: Rate | None = None  # Hz; null: 24 kHz, G.711 8 kHz


class TranscriptionPatch(Struct, frozen=True, forbid_unknown_fields=True):
    model: str | UnsetType | None = UNSET
    language: str | UnsetType | None = UNSET
    prompt: str | UnsetType | None = UNSET


class TurnDetectionPatch(Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["server_vad"] = "server_vad"
    threshold: SpeechThreshold | None = None
    prefix_padding_ms: PaddingMs | None = None
    silence_duration_ms: SilenceMs | None = None


class InputPatch(Struct, frozen=True, forbid_unknown_fields=True):
    format: AudioFormat | UnsetType | None = UNSET
    transcription: TranscriptionPatch | UnsetType | None = UNSET
    turn_detection: TurnDetectionPatch | UnsetType | None = UNSET
    noise_reduction: UnsetType | None = UNSET  # there is none: asking for it is an error


class AudioPatch(Struct, frozen=True, forbid_unknown_fields=True):
    input: InputPatch | UnsetType | None = UNSET


class SessionPatch(Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["transcription"] = "transcription"
    audio: AudioPatch | UnsetType | None = UNSET
    include: list[str] | UnsetType | None = UNSET


class SessionUpdate(Struct, frozen=True, tag_field="type", tag="session.update"):
    session: SessionPatch
    event_id: str | None = None


class Append(Struct, frozen=True, tag_field="type", tag="input_audio_buffer.append"):
    audio: str  # base64
    event_id: str | None = None


class CommitBuffer(Struct, frozen=True, tag_field="type", tag="input_audio_buffer.commit"):
    event_id: str | None = None


class ClearBuffer(Struct, frozen=True, tag_field="type", tag="input_audio_buffer.clear"):
    event_id: str | None = None


class BetaSessionUpdate(Struct, frozen=True, tag_field="type", tag="transcription_session.update"):
    """The form that `session.update` replaced."""

    event_id: str | None = None


ClientEvent = SessionUpdate | Append | CommitBuffer | ClearBuffer | BetaSessionUpdate

# --- server -> client -------------------------------------------------------------------------------------------------

TENTATIVE = "item.input_audio_transcription.tentative"  # of `include`: words that may still change


class WireFormat(Struct, frozen=True):
    type: str
    rate: int


class WireTranscription(Struct, frozen=True):
    model: str
    language: str | None
    prompt: str | None


class WireTurnDetection(Struct, frozen=True):
    type: str
    threshold: float
    prefix_padding_ms: int
    silence_duration_ms: int


class WireInput(Struct, frozen=True):
    format: WireFormat
    transcription: WireTranscription
    turn_detection: WireTurnDetection | None
    noise_reduction: None = None  # there is none


class WireAudio(Struct, frozen=True):
    input: WireInput


class WireSession(Struct, frozen=True):
    id: str
    audio: WireAudio
    include: list[str] | None = None
    type: str = "transcription"
    object: str = "realtime.transcription_session"


class ServerEvent(Struct, frozen=True, kw_only=True, tag_field="type"):
    event_id: str


class SessionCreated(ServerEvent, frozen=True, tag="session.created"):
    session: WireSession


class SessionUpdated(ServerEvent, frozen=True, tag="session.updated"):
    session: WireSession


class SpeechStarted(ServerEvent, frozen=True, tag="input_audio_buffer.speech_started"):
    item_id: str
    audio_start_ms: int


class SpeechStopped(ServerEvent, frozen=True, tag="input_audio_buffer.speech_stopped"):
    item_id: str
    audio_end_ms: int


class BufferCommitted(ServerEvent, frozen=True, tag="input_audio_buffer.committed"):
    item_id: str
    previous_item_id: str | None


class BufferCleared(ServerEvent, frozen=True, tag="input_audio_buffer.cleared"):
    pass


class ContentPart(Struct, frozen=True):
    transcript: str | None = None
    type: str = "input_audio"


class ConversationItem(Struct, frozen=True):
    id: str
    content: tuple[ContentPart, ...] = (ContentPart(),)
    object: str = "realtime.item"
    type: str = "message"
    status: str = "completed"
    role: str = "user"


class ItemAdded(ServerEvent, frozen=True, tag="conversation.item.added"):
    item: ConversationItem
    previous_item_id: str | None


class ItemDone(ServerEvent, frozen=True, tag="conversation.item.done"):
    item: ConversationItem
    previous_item_id: str | None


class TranscriptDelta(ServerEvent, frozen=True, tag="conversation.item.input_audio_transcription.delta"):
    item_id: str
    delta: str
    content_index: int = 0


class TranscriptTentative(ServerEvent, frozen=True, tag="conversation.item.input_audio_transcription.tentative"):
    """What may follow the deltas so far; replaces the tentative text before it."""

    item_id: str
    text: str
    content_index: int = 0


class TranscriptCompleted(ServerEvent, frozen=True, tag="conversation.item.input_audio_transcription.completed"):
    item_id: str
    transcript: str
    usage: DurationUsage
    content_index: int = 0


class WireError(Struct, frozen=True):
    type: str
    code: str | None
    message: str
    param: str | None = None
    event_id: str | None = None


class TranscriptFailed(ServerEvent, frozen=True, tag="conversation.item.input_audio_transcription.failed"):
    item_id: str
    error: WireError
    content_index: int = 0


class ErrorEvent(ServerEvent, frozen=True, tag="error"):
    error: WireError


class Stamp(Struct, frozen=True):
    """What can be read of a client's event that is not legal."""

    type: str | None = None
    event_id: str | None = None


decode_event = msgspec.json.Decoder(ClientEvent).decode
decode_stamp = msgspec.json.Decoder(Stamp).decode
encode_event = msgspec.json.Encoder().encode
