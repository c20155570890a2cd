"""What the pool threads do: decode files, find speech, cut windows; decode the chunks of live streams."""

from collections.abc import Container
from dataclasses import dataclass
from time import monotonic

from msgspec.structs import replace

from models.whisper.languages import LANGUAGES
from models.whisper.model import MAX_CONTEXT_TOKENS, Whisper
from pipelines.audio.cuts import cut
from pipelines.audio.fallback import TEMPERATURES
from pipelines.audio.features import SAMPLE_RATE
from pipelines.audio.files.file import Prepared
from pipelines.audio.live.chunks import AudioChunk, ChunkDecoder
from pipelines.audio.live.streaming import WORD_PAUSE_MS
from pipelines.audio.vad import Silero, speech_spans
from pipelines.base import InvalidRequest, Ticket
from pipelines.effort import of_file
from pipelines.media.decoder import MediaDecoder
from pipelines.media.messages import AudioJob
from pipelines.messages.audio import (
    Audio,
    AudioOptions,
    Clear,
    Commit,
    Configure,
    End,
    StreamRequest,
    TranscriptionRequest,
    decode_item,
)

ORPHAN_SECONDS = 60.0  # after which a decoder without a stream belongs to a request that ended while it was prepared


@dataclass(frozen=True, slots=True)
class Opening:
    """A live stream, ready to take audio."""

    ticket: Ticket
    request: StreamRequest
    context: tuple[int, ...]
    prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Rejected:
    """A change that can't be made."""

    refusal: InvalidRequest
    event_id: str | None


@dataclass(frozen=True, slots=True)
class Input:
    """What a stream is fed, as the engine takes it."""

    ticket: Ticket
    item: AudioChunk | Commit | Clear | Opening | Rejected | End
    prompt_tokens: int = 0


AudioWork = Prepared | Opening | Input


class Preparer:
    """Shared by the pool threads; single operations on `decoders` are atomic, and one stream's calls come in order."""

    def __init__(self, model: Whisper, options: AudioOptions, silero: Silero) -> None:
        self._model = model
        self._options = options
        self._silero = silero
        self.media = MediaDecoder()
        self.decoders: dict[str, tuple[float, ChunkDecoder]] = {}  # by request; when it was made

    def prepare(
        self, ticket: Ticket, request: TranscriptionRequest | StreamRequest, live: Container[str]
    ) -> list[AudioWork]:
        """See `pipelines.base.Pipeline`. `live`: ids of the streams that the engine has."""
        match request:
            case TranscriptionRequest():
                return [self._prepare_file(ticket, request)]
            case StreamRequest():
                work = self._opening(ticket, request)
                self._drop_orphans(live)
                self.decoders[ticket.id] = monotonic(), ChunkDecoder(self._silero, request)
                return [work]

    def feed(self, ticket: Ticket, data: bytes) -> list[AudioWork]:
        found = self.decoders.get(ticket.id)
        if found is None:
            return []
        _, decoder = found
        match decode_item(data):
            case Audio(data=samples):
                return [Input(ticket, decoder.decode(samples))]
            case Configure(to=request, event_id=event_id):
                try:
                    work = self._opening(ticket, request)
                except InvalidRequest as refusal:
                    return [Input(ticket, Rejected(refusal, event_id))]
                return [Input(ticket, decoder.configure(request)), Input(ticket, work)]
            case End() as end:
                return [Input(ticket, decoder.flush()), Input(ticket, end)]
            case item:
                return [Input(ticket, item)]

    def forget(self, request_id: str) -> None:
        """Its stream has ended."""
        self.decoders.pop(request_id, None)

    def _drop_orphans(self, live: Container[str]) -> None:
        """Decoders of requests that ended while they were prepared: no stream of the engine will ever forget them."""
        now = monotonic()
        for id, (made, _) in list(self.decoders.items()):
            if id not in live and now - made > ORPHAN_SECONDS:
                self.forget(id)

    def _prepare_file(self, ticket: Ticket, request: TranscriptionRequest) -> Prepared:
        language = self._language(request.language)
        context = self._context(request.prompt, request.hotwords)
        job = AudioJob(path=request.path, rate=SAMPLE_RATE, max_seconds=self._options.max_seconds)
        audio = self.media.audio(job)
        probabilities = self._silero.probabilities(audio)
        cuts = cut(
            probabilities,
            len(audio),
            threshold=request.vad_threshold,
            silence_ms=request.vad_silence_ms,
            padding_ms=request.vad_padding_ms,
        )
        speech = speech_spans(probabilities, request.vad_threshold, WORD_PAUSE_MS)
        return Prepared(
            ticket=ticket,
            request=request,
            audio=audio,
            cuts=tuple(cuts),
            speech=tuple(speech),
            context=context,
            temperatures=(request.temperature,) if request.temperature else TEMPERATURES,
            language=language,
            ready=monotonic(),
        )

    def _opening(self, ticket: Ticket, request: StreamRequest) -> Opening:
        language = self._language(request.language)
        if language != request.language:
            request = replace(request, language=language)
        return Opening(ticket, request, self._context(request.prompt, ""))

    def _language(self, code: str | None) -> str | None:
        """The language to transcribe in; None: to be detected. Raises InvalidRequest."""
        languages = self._model.languages
        if code is not None and code not in languages:
            if code in LANGUAGES:
                raise InvalidRequest(
                    f"This model does not speak {code!r}; it speaks {', '.join(languages)}.", "language"
                )
            known = ", ".join(sorted(languages))
            raise InvalidRequest(f"{code!r} is no language code (ISO 639-1); known here: {known}.", "language")
        return code or (languages[0] if len(languages) == 1 else None)

    def _context(self, prompt: str, hotwords: str) -> tuple[int, ...]:
        """Tokens of the text before a window: at most half of what the decoder holds, hot words first."""
        tokens: list[int] = []
        if hotwords.strip():
            tokens += self._model.encode_text(" " + hotwords.strip())[: MAX_CONTEXT_TOKENS // 2]
        if prompt.strip():
            tokens += self._model.encode_text(" " + prompt.strip())[-(MAX_CONTEXT_TOKENS - len(tokens)) :]
        return (self._model.start_of_previous, *tokens) if tokens else ()


def effort(request: TranscriptionRequest | StreamRequest) -> int:
    """How much there is to prepare, in the unit of `pipelines.effort`: of a stream, nothing yet."""
    return of_file(request.path) if isinstance(request, TranscriptionRequest) else 0
