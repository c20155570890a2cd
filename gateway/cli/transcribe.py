"""`gateway transcribe`: files to text with a worker of one's own, no server needed."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from gateway.api.audio.answer import TranscriptionAnswer
from gateway.api.audio.request import Format, Task
from gateway.backends.base import State
from gateway.config.settings import ModelSettings, Settings
from gateway.errors import ApiError
from gateway.requests.exchange import Exchange, Job, Terms
from gateway.requests.fleet import Fleet
from metrics.registry import Registry
from metrics.timeline import Timeline, phases
from pipelines.kinds import AUDIO, metrics_by_kind
from pipelines.messages.audio import Media, Passage, Segment, TranscriptionRequest
from pipelines.messages.frames import Done

AT_ONCE = 4  # files that are transcribed side by side: their windows share batches
ONE_FILE_S = 24 * 3600.0
WORDS_FORMATS = ("srt", "vtt", "verbose_json")


class TranscribeError(Exception):
    """No model, or a model that can't be loaded; the text is for the operator."""


@dataclass(frozen=True, slots=True)
class TranscribeOptions:
    """What is asked of every file."""

    format: Format = "text"
    task: Task = "transcribe"
    language: str | None = None
    prompt: str = ""


@dataclass(slots=True)
class Progress:
    """One file's; `changed` is called on the event loop after each change."""

    path: Path
    changed: Callable[["Progress", str], None] = field(repr=False)  # with the text that is new
    index: int = 0  # among the files: one may be given twice
    seconds: float = 0.0  # that the file has; 0: not known yet
    until: float = 0.0  # that are transcribed
    segments: list[Segment] = field(default_factory=list)
    output: str | None = None  # the whole transcript, once it is done
    error: str | None = None

    @property
    def ended(self) -> bool:
        return self.output is not None or self.error is not None


def audio_model(settings: Settings, name: str | None) -> ModelSettings:
    """The configured audio model of that name or alias; without one, the first. Raises TranscribeError."""
    models = [model for model in settings.models if model.kind == AUDIO.name]
    for model in models:
        if name is None or name in (model.name, *model.aliases):
            return model
    known = ", ".join(model.name for model in models) or "none"
    raise TranscribeError(
        f"there is no audio model {name!r}; configured: {known}" if name else "no audio model is configured"
    )


async def transcribe(model: ModelSettings, options: TranscribeOptions, files: Sequence[Progress]) -> None:
    """Transcribe every file; each tells its own end. Raises TranscribeError where the model can't be loaded."""
    registry = Registry(metrics_by_kind())
    model = msgspec.structs.replace(
        model, preload=True, replicas=1, first_event_timeout_s=ONE_FILE_S, gap_timeout_s=ONE_FILE_S
    )
    fleet = Fleet(Settings(models=[model]), registry)
    await fleet.start()
    try:
        await _ready(fleet)
        room = asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for file in files:
                group.create_task(_one(fleet, registry, options, file, room))
    finally:
        await fleet.drain(0)


async def _ready(fleet: Fleet) -> None:
    (route,) = fleet.routes
    (replica,) = route.replicas
    changed = asyncio.Event()
    replica.subscribe(changed.set)
    while replica.state is not State.READY:
        if replica.state is State.FAILED:
            raise TranscribeError(f"{route.name} can't be loaded: {replica.reason}")
        changed.clear()
        await changed.wait()


async def _one(
    fleet: Fleet, registry: Registry, options: TranscribeOptions, file: Progress, room: asyncio.Semaphore
) -> None:
    async with room:
        (route,) = fleet.routes
        request = TranscriptionRequest(
            path=str(file.path.absolute()),
            task=options.task,
            language=options.language,
            prompt=options.prompt,
            timestamps=options.format in WORDS_FORMATS,
        )
        job = Job(str(file.path), route, request, 1, Terms(ONE_FILE_S))
        exchange = Exchange(job, Timeline(), registry)
        answer = TranscriptionAnswer(options.format, options.task, [])
        try:
            with exchange:
                await _read(exchange, answer, file)
        except ApiError as error:
            file.error = error.message
            file.changed(file, "")


async def _read(exchange: Exchange, answer: TranscriptionAnswer, file: Progress) -> None:
    await exchange.open()
    async for event in exchange.events():
        fresh = ""
        match event:
            case Done():
                file.until = file.seconds
                file.output = answer.finish(event, phases(exchange.timeline)).decode()
            case Media(seconds=seconds):
                file.seconds = seconds
            case Passage(until=until, segments=segments):
                file.until = until
                file.segments += segments
                fresh = "".join(segment.text for segment in segments)
        if not isinstance(event, Done):
            answer.render(event)
        file.changed(file, fresh)


def quiet() -> None:
    """The worker's start and end are nobody's business here."""
    logging.basicConfig(level=logging.WARNING)
