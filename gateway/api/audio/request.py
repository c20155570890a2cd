"""`POST /v1/audio/transcriptions` and `/translations`: the form."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Struct, ValidationError

from gateway.api.forms import single
from gateway.api.texts import NOT_EMPTY
from gateway.errors import ApiError, bad_request, validation_error
from pipelines.messages.audio import AudioTemperature, PaddingMs, SilenceMs, SpeechThreshold, TranscriptionRequest

Format = Literal["json", "text", "srt", "vtt", "verbose_json"]
Granularity = Literal["word", "segment"]
Task = Literal["transcribe", "translate"]

# Forms repeat a list's name, with brackets (OpenAI's clients) or without.
LISTS = frozenset({"timestamp_granularities", "include"})


class ChunkingStrategy(Struct, frozen=True, forbid_unknown_fields=True):
    """How long audio is cut. "auto", or where speech is detected with these."""

    type: Literal["auto", "server_vad"] = "auto"
    threshold: SpeechThreshold = 0.5
    silence_duration_ms: SilenceMs = 500
    prefix_padding_ms: PaddingMs = 500


class TranscriptionForm(Struct, frozen=True, forbid_unknown_fields=True):
    model: Annotated[str, NOT_EMPTY]
    language: str | None = None
    prompt: str = ""
    response_format: Format = "json"
    temperature: AudioTemperature | None = None
    timestamp_granularities: list[Granularity] = []
    stream: bool = False
    chunking_strategy: ChunkingStrategy = ChunkingStrategy()
    hotwords: str = ""
    include: list[str] = []

    @property
    def timed(self) -> bool:
        """Whether the answer has times in it."""
        return self.response_format in ("srt", "vtt", "verbose_json")


def parse_form(fields: Mapping[str, Sequence[str]]) -> TranscriptionForm:
    """Raises ApiError (400) naming the field."""
    values: dict[str, object] = {}
    strategy: dict[str, str] = {}
    for spelled, given in fields.items():
        name = spelled.removesuffix("[]")
        if name in LISTS:
            values.setdefault(name, [])
            known = values[name]
            assert isinstance(known, list)
            known += [value for value in given if value != ""]
        elif name.startswith("chunking_strategy[") and name.endswith("]"):
            strategy[name.removeprefix("chunking_strategy[").removesuffix("]")] = given[0]
        elif (value := single(name, given)) is not None:
            values[name] = value
    if strategy:
        values["chunking_strategy"] = strategy
    elif isinstance(plain := values.get("chunking_strategy"), str):
        values["chunking_strategy"] = _strategy(plain)
    if "stream" in values:
        values["stream"] = _boolean("stream", values["stream"])
    try:
        form = msgspec.convert(values, TranscriptionForm, strict=False)
    except ValidationError as error:
        raise validation_error(error, TranscriptionForm) from None
    _check(form)
    return form


def to_request(form: TranscriptionForm, path: str, task: Task) -> TranscriptionRequest:
    strategy = form.chunking_strategy
    return TranscriptionRequest(
        path=path,
        task=task,
        language=form.language,
        prompt=form.prompt,
        hotwords=form.hotwords,
        temperature=form.temperature,
        timestamps=form.timed,
        vad_threshold=strategy.threshold,
        vad_silence_ms=strategy.silence_duration_ms,
        vad_padding_ms=strategy.prefix_padding_ms,
    )


def _check(form: TranscriptionForm) -> None:
    """What no single field can tell."""
    if form.stream and form.response_format in ("srt", "vtt"):
        raise _conflict("response_format", "a streamed transcript is 'json', 'text' or 'verbose_json'")
    if form.timestamp_granularities and form.response_format != "verbose_json":
        raise _conflict("timestamp_granularities", "they are part of the response format 'verbose_json' alone")
    if form.include:
        raise _conflict("include", "nothing can be included here")
    if form.language is not None and form.language != form.language.strip():
        raise _conflict(
            "language", "a language code has no spaces around it; legal: ISO 639-1 codes such as 'en', 'de'"
        )


def _conflict(param: str, message: str) -> ApiError:
    return bad_request(param, f"{param!r} is not valid: {message}.")


def _boolean(name: str, text: object) -> bool:
    match str(text).lower():
        case "true" | "1":
            return True
        case "false" | "0":
            return False
        case _:
            raise _conflict(name, "legal: true, false")


def _strategy(text: str) -> object:
    """ "auto", or a JSON object."""
    if text.lstrip().startswith("{"):
        try:
            found: object = msgspec.json.decode(text)
        except msgspec.DecodeError:
            raise _conflict("chunking_strategy", "it is no JSON") from None
        return found
    return {"type": text}
