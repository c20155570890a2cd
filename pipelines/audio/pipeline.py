"""The audio step loop: one encode, decode or alignment of a batch of windows, of any files and live streams."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import isfinite
from time import monotonic

import ctranslate2
import numpy as np

from metrics.definitions import audio as metrics
from metrics.metric import CounterSeries
from models.device import available_cpus
from models.errors import ModelLoadError
from models.whisper.model import Spoken, Whisper, load_whisper
from pipelines.audio.coverage import Patch, continuation, missing, needs_alignment
from pipelines.audio.fallback import Verdict, judge
from pipelines.audio.features import MAX_FRAMES, SAMPLE_RATE, LogMel
from pipelines.audio.files.file import FileJob, Prepared
from pipelines.audio.live.chunks import AudioChunk
from pipelines.audio.live.streaming import LiveStream, StreamOptions
from pipelines.audio.prepare import AudioWork, Input, Opening, Preparer, Rejected, effort
from pipelines.audio.vad import Silero
from pipelines.audio.windows import Lane, Owner, Stage, Window, WindowQueue
from pipelines.base import ModelError, StepFailed, StepResult, Ticket, non_finite
from pipelines.messages.audio import (
    AudioOptions,
    Clear,
    Commit,
    End,
    StreamRequest,
    TranscriptionRequest,
)
from pipelines.messages.frames import Done, Event, Failed, ModelSpec, Ready, Stats, StepReport

PREFETCH = 2  # files that are decoded while as many as a batch has windows are under way
BEST_OF = 5  # samples at a temperature above 0
PARTIAL_INTERVAL = 0.5  # seconds of new speech before a turn is decoded again
PARTIAL_SHARE = 0.5  # of the time, that partials of all streams may take; past it they come less often
WARM_UP_SECONDS = 1.0


class AudioPipeline:
    """Transcribes files and live streams."""

    def __init__(self, model: Whisper, options: AudioOptions) -> None:
        self._model = model
        self._options = options
        self._mel = LogMel(model.n_mels)
        self._silero = Silero()
        self._preparer = Preparer(model, options, self._silero)
        self._queue = WindowQueue()
        self._files: dict[str, FileJob] = {}
        self._streams: dict[str, LiveStream] = {}
        self._said: list[Event] = []  # by admitted work, to go out with the next step
        self._partial_cost = 0.0  # seconds, mean
        self._counters: defaultdict[CounterSeries, float] = defaultdict(float)

    @classmethod
    def load(cls, spec: ModelSpec[AudioOptions]) -> "tuple[AudioPipeline, Ready]":
        from models.files.source import resolve

        options = spec.options
        device = spec.device
        if device == "auto":
            device = "cuda" if ctranslate2.get_cuda_device_count() else "cpu"
        compute_type = options.compute_type or ("default" if spec.quantization == "none" else _compute_type(device))
        threads = spec.threads or available_cpus()
        try:
            model = load_whisper(resolve(spec.source), device=device, compute_type=compute_type, threads=threads)
        except ModelLoadError as error:
            raise ModelError(str(error)) from error
        pipeline = cls(model, options)
        pipeline._preparer.media.warm()
        pipeline.warm_up()
        ready = Ready(
            slots=options.max_batch + PREFETCH,
            streams=options.max_streams,
            details={**model.details, "threads": str(threads), "window": options.window},
        )
        return pipeline, ready

    def warm_up(self) -> None:
        silence = np.zeros(int(WARM_UP_SECONDS * SAMPLE_RATE), np.int16)
        for frames in (MAX_FRAMES // 2, MAX_FRAMES):
            encoded = self._model.encode([self._mel(silence, frames)])
            start = self._model.start("en", "transcribe")
            self._model.generate(encoded, [start], [()], beam_size=self._options.beam_size, temperature=0, best_of=1)
        self._silero.probabilities(silence)

    # --- pool threads -------------------------------------------------------------------------------------------------

    def prepare(self, ticket: Ticket, request: TranscriptionRequest | StreamRequest) -> list[AudioWork]:
        return self._preparer.prepare(ticket, request, self._streams)

    def brief(self, request: TranscriptionRequest | StreamRequest) -> bool:
        return False

    def effort(self, request: TranscriptionRequest | StreamRequest) -> int:
        return effort(request)

    def feed(self, ticket: Ticket, data: bytes) -> list[AudioWork]:
        return self._preparer.feed(ticket, data)

    # --- engine thread ------------------------------------------------------------------------------------------------

    def admit(self, works: Sequence[AudioWork]) -> None:
        for work in works:
            match work:
                case Prepared():
                    full = self._options.window == "full"
                    job = FileJob(work, self._model, self._options.max_batch, full)
                    self._files[work.ticket.id] = job
                    self._counters[metrics.AUDIO_SECONDS.series()] += work.seconds
                    job.begin()
                    self._collect(job)
                case Opening(ticket=ticket):
                    options = StreamOptions(
                        self._model, self._options.window == "full", self._options.max_buffer_seconds
                    )
                    self._streams[ticket.id] = LiveStream(ticket, work.request, work.context, options)
                case Input(ticket=ticket, item=item):
                    stream = self._streams.get(ticket.id)
                    if stream is not None:
                        self._apply(stream, item)

    def _apply(self, stream: LiveStream, item: AudioChunk | Commit | Clear | Opening | Rejected | End) -> None:
        match item:
            case AudioChunk():
                self._counters[metrics.AUDIO_SECONDS.series()] += len(item.samples) / SAMPLE_RATE
                stream.append(item)
            case Commit(event_id=event_id):
                stream.commit(event_id)
            case Clear():
                stream.clear()
            case Opening(request=request, context=context):
                stream.configure(request, context)
            case Rejected(refusal=refusal, event_id=event_id):
                stream.refuse("invalid_value", refusal.message, event_id, refusal.param)
            case End():
                stream.end()
        self._collect(stream)

    def abort(self, request_id: str) -> None:
        self._files.pop(request_id, None)
        self._streams.pop(request_id, None)
        self._preparer.forget(request_id)
        self._queue.forget(request_id)

    @property
    def busy(self) -> bool:
        return bool(self._said or len(self._queue))

    def step(self, only: str | None = None) -> StepResult:
        if self._said:
            return StepResult(self._take_said())
        group = self._queue.group(self._options.max_batch, only)
        if not group:
            return StepResult()
        began = monotonic()
        for window in group:
            job = self._files.get(window.ticket.id)
            if job is not None and job.started is None:
                job.started = began
        try:
            match group[0].stage:
                case Stage.ENCODE:
                    kind, tokens = "encode", self._encode(group)
                case Stage.DECODE:
                    kind, tokens = "decode", self._decode(group)
                case Stage.ALIGN:
                    kind, tokens = "align", self._align(group)
        except Exception as error:
            raise StepFailed(dict.fromkeys(window.ticket.id for window in group), error) from error
        seconds = monotonic() - began
        self._note_cost(group, seconds)
        for owner in dict.fromkeys(window.owner for window in group if self._open(window.ticket.id)):
            self._collect(owner)
        return StepResult(self._take_said(), StepReport(kind, len(group), tokens, seconds))

    def stats(self) -> Stats:
        return Stats(
            running=len({window.ticket.id for window in self._queue}),
            waiting=len(self._queue),
            counters=dict(self._counters),
            gauges={metrics.OPEN_STREAMS.series(): len(self._streams)},
        )

    # --- stages -------------------------------------------------------------------------------------------------------

    def _encode(self, group: Sequence[Window]) -> int:
        encoded = self._model.encode([self._mel(window.audio, window.frames) for window in group])
        unknown = [(w, e) for w, e in zip(group, encoded, strict=True) if w.language is None]
        languages = self._model.detect_language([e for _, e in unknown]) if unknown else []
        for window, output in zip(group, encoded, strict=True):
            window.encoded, window.stage = output, Stage.DECODE
        for (window, _), probabilities in zip(unknown, languages, strict=True):
            self._queue.remove(window)
            self._queue.put(window.owner.detected(window, probabilities))
        return sum(window.frames for window in group) // 2

    def _decode(self, group: Sequence[Window]) -> int:
        starts = [self._model.start(window.language or "en", window.task) for window in group]
        hypotheses = self._model.generate(
            [window.encoded for window in group if window.encoded is not None],
            [[*window.context, *start] for window, start in zip(group, starts, strict=True)],
            [window.prefix for window in group],
            beam_size=self._options.beam_size,
            temperature=group[0].temperature,
            best_of=BEST_OF,
        )
        pairs = list(zip(group, hypotheses, strict=True))
        broken = {window.ticket.id for window, hypothesis in pairs if not isfinite(hypothesis.avg_logprob)}
        self._say(map(non_finite, broken))
        for window, hypothesis in pairs:
            if window.ticket.id in broken:
                continue
            if window.lane is Lane.PARTIAL:
                window.tried.append(hypothesis)
                window.result = hypothesis
                self._accept(window)
                continue
            match judge(window, hypothesis):
                case Verdict.RETRIED:
                    tried = "30s" if window.stage is Stage.ENCODE else window.temperature
                    self._counters[metrics.FALLBACKS.series(tried)] += 1
                case Verdict.SILENCE:
                    self._counters[metrics.SILENCES.series()] += 1
                    self._check(window)
                case Verdict.ACCEPTED:
                    self._accept(window)
        return sum(len(hypothesis.tokens) for hypothesis in hypotheses)

    def _accept(self, window: Window) -> None:
        assert window.result is not None
        if window.result.tokens and (window.aligned or needs_alignment(window)):
            window.stage = Stage.ALIGN
        else:
            self._check(window)

    def _align(self, group: Sequence[Window]) -> int:
        spoken = [
            Spoken(window.encoded, window.result.tokens, window.language or "en", window.task, window.seconds)
            for window in group
            if window.encoded is not None and window.result is not None
        ]
        for window, words in zip(group, self._model.align(spoken), strict=True):
            window.words = words
            self._check(window)
        return sum(len(each.tokens) for each in spoken)

    def _check(self, window: Window) -> None:
        """Finish a window, or decode again what has speech and no words in it."""
        found = missing(window)
        if window.lane is Lane.PARTIAL:
            window.missing, found = found, []
        if not found:
            self._finish(window)
            return
        if prefix := continuation(window, found):
            window.prefix, window.continued, window.stage, window.words = prefix, True, Stage.DECODE, []
            self._counters[metrics.DECODED_AGAIN.series("continued")] += 1
            return
        self._queue.remove(window)
        window.encoded = None
        self._queue.put(Patch(window, found, self._model).windows)

    def _finish(self, window: Window) -> None:
        self._counters[metrics.WINDOWS.series()] += 1
        self._queue.remove(window)
        window.encoded = None
        window.owner.finished(window)
        if isinstance(patch := window.owner, Patch) and patch.closed:
            for reason, count in patch.outcomes.items():
                self._counters[metrics.DECODED_AGAIN.series(reason)] += count
            self._finish(patch.window)

    # --- owners -------------------------------------------------------------------------------------------------------

    def _collect(self, owner: Owner) -> None:
        """Take what an owner has to say and to decode."""
        if isinstance(owner, LiveStream):
            owner.partial(self._interval())
            self._counters[metrics.DROPPED_PARTIALS.series()] += owner.dropped_partials
            owner.dropped_partials = 0
        events, windows, dropped = owner.take()
        for window in dropped:
            self._queue.remove(window)
        self._queue.put(windows)
        self._say(events)

    def _say(self, events: Iterable[Event]) -> None:
        for event in events:
            self._said.append(event)
            if isinstance(event, Done | Failed):
                self.abort(event.id)

    def _take_said(self) -> list[Event]:
        said, self._said = self._said, []
        return said

    def _open(self, request_id: str) -> bool:
        return request_id in self._files or request_id in self._streams

    def _interval(self) -> float:
        """Seconds of speech between two partials of a stream: longer where all of them would take too much time."""
        speaking = sum(stream.speaking for stream in self._streams.values())
        return max(PARTIAL_INTERVAL, speaking * self._partial_cost / PARTIAL_SHARE)

    def _note_cost(self, group: Sequence[Window], seconds: float) -> None:
        for window in group:
            window.spent += seconds / len(group)
            if window.lane is Lane.PARTIAL and window not in self._queue:
                self._partial_cost += 0.2 * (window.spent - self._partial_cost)


def _compute_type(device: str) -> str:
    return "int8" if device == "cpu" else "float16"
