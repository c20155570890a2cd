"""One live stream: turns, partials while someone speaks, finals when they stop.

A turn is one item. It is decoded again and again while it grows; words that two runs agree on are committed and never
change. The final run begins with them, so all that was said of an item adds up to its transcript. A turn too long for
one window is cut where the speaker is least audible; each section gets a final run of its own.
"""

from dataclasses import dataclass, field
from time import monotonic

from models.whisper.model import Whisper
from pipelines.audio.agreement import Agreement
from pipelines.audio.coverage import pause_before
from pipelines.audio.cuts import Cut, cut, quietest
from pipelines.audio.fallback import TEMPERATURES, is_degenerate, is_silent
from pipelines.audio.features import SAMPLE_RATE, Samples
from pipelines.audio.live.buffer import AudioBuffer
from pipelines.audio.live.chunks import AudioChunk
from pipelines.audio.live.items import Item, Items, Section, seconds
from pipelines.audio.live.turns import ONSET, Began, TurnDetector
from pipelines.audio.vad import FRAME, Span, speech_spans
from pipelines.audio.windows import Lane, Stage, Window
from pipelines.base import Ticket
from pipelines.messages.audio import (
    Acknowledged,
    Cleared,
    Committed,
    Configured,
    ItemFailed,
    Refusal,
    SpeechStarted,
    SpeechStopped,
    StreamRequest,
)
from pipelines.messages.frames import Done, Event, Timing, Usage

MIN_COMMIT = SAMPLE_RATE // 10  # 100 ms: less can't be committed
FIRST_PARTIAL = SAMPLE_RATE * 6 // 10  # speech that a section has before it is decoded for the first time
MIN_AGREED = SAMPLE_RATE  # speech before words are committed: guesses at less than this agree with each other
LONG_SECTION = 20 * SAMPLE_RATE  # from here on a section ends at the next dip of the voice
MAX_SECTION = 28 * SAMPLE_RATE  # and here at the latest
CUT_RANGE = 8 * SAMPLE_RATE  # how far back a cut is looked for
DIP = 0.35  # speech probability at which a long section is cut
TAIL = SAMPLE_RATE * 3 // 10  # silence after a turn's last speech that its final run is given
LEFT_OUT = SAMPLE_RATE  # speech that a partial leaves out before it counts: its last words may not be there yet
LANGUAGE_THRESHOLD = 0.5
MAX_BACKLOG = 60 * SAMPLE_RATE  # audio that may wait for its final run before the client is held back
ACKNOWLEDGED = SAMPLE_RATE // 2  # audio between two `Acknowledged`
WORD_PAUSE_MS = 200  # silence that words are taken out of


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What a stream does not decide for itself."""

    model: Whisper
    full: bool  # finals encode 30 s
    max_buffer_seconds: int


@dataclass(slots=True)
class Turn:
    """The item that is open, and its growing section."""

    item: Item
    speech: int  # first sample of speech
    start: int  # of the section
    decoded: int  # position up to which there was a partial
    agreement: Agreement = field(default_factory=Agreement)
    prefix: tuple[int, ...] = ()  # the committed words, as the model says them
    partial: Window | None = None  # under way


class LiveStream:
    """Engine thread only. What it has to say and to decode is fetched with `take`."""

    def __init__(
        self, ticket: Ticket, request: StreamRequest, context: tuple[int, ...], options: StreamOptions
    ) -> None:
        self.dropped_partials = 0
        self._ticket = ticket
        self._request = request
        self._context = context
        self._options = options
        self._events: list[Event] = []
        self._windows: list[Window] = []
        self._dropped: list[Window] = []
        self._buffer = AudioBuffer()
        self._detector = TurnDetector(request.turn_detection) if request.turn_detection else None
        self._turn: Turn | None = None
        self._items = Items(ticket.id, options.model, self._buffer)
        self._uncommitted = 0  # position after what was committed or cleared last
        self._overflowing = False
        self._received = 0  # samples, those that overflowed too
        self._acknowledged = 0
        self._generated = 0
        self._ending = False

    @property
    def speaking(self) -> bool:
        return self._turn is not None

    def take(self) -> tuple[list[Event], list[Window], list[Window]]:
        """(what to say, windows to be queued, windows that nobody waits for any more)."""
        taken = self._events, self._windows, self._dropped
        self._events, self._windows, self._dropped = [], [], []
        return taken

    # --- input --------------------------------------------------------------------------------------------------------

    def append(self, chunk: AudioChunk) -> None:
        self._received += len(chunk.samples)
        if self._detector is None and self._held + len(chunk.samples) > self._options.max_buffer_seconds * SAMPLE_RATE:
            if not self._overflowing:
                held = self._options.max_buffer_seconds
                message = (
                    f"The buffer holds {held} s, all that it can; commit or clear it. What comes until then is lost."
                )
                self.refuse("input_audio_buffer_overflow", message)
            self._overflowing = True
        else:
            known = self._buffer.frames
            self._buffer.append(chunk)
            if self._detector is not None:
                for change in self._detector.update(chunk.probabilities, known):
                    if isinstance(change, Began):
                        self._begin(change)
                    else:
                        self._finish(change.speech, change.seen)
                self._grow()
        self._acknowledge()

    def commit(self, event_id: str | None = None) -> None:
        """Make an item of what is held; in a detected turn, end it."""
        if self._detector is not None and self._turn is None:
            self.refuse("input_audio_buffer_commit_empty", "There is no speech to commit: no turn is open.", event_id)
        elif self._detector is None and self._held < MIN_COMMIT:
            held = self._held * 1000 // SAMPLE_RATE
            message = f"At least 100 ms of audio are needed to commit; the buffer holds {held} ms."
            self.refuse("input_audio_buffer_commit_empty", message, event_id)
        else:
            self._commit()

    def clear(self) -> None:
        """Forget what is not committed. An open turn ends without a transcript."""
        turn, self._turn = self._turn, None
        if turn is not None and self._detector is not None:
            self._detector.stop()
            self._drop_partial(turn)
            self._events.append(SpeechStopped(self._ticket.id, turn.item.number, seconds(self._buffer.end)))
            self._events.append(ItemFailed(self._ticket.id, turn.item.number, "The audio buffer was cleared."))
        self._uncommitted = self._buffer.end
        self._overflowing = False
        self._forget()
        self._events.append(Cleared(self._ticket.id))

    def configure(self, request: StreamRequest, context: tuple[int, ...]) -> None:
        """From here on as `request` says. What is held is committed where it changes how turns are made."""
        if request.turn_detection != self._request.turn_detection:
            self._commit()
            self._detector = TurnDetector(request.turn_detection) if request.turn_detection else None
        self._request, self._context = request, context
        self._events.append(Configured(self._ticket.id))

    def refuse(self, code: str, message: str, event_id: str | None = None, param: str | None = None) -> None:
        """Say that something the client sent has no effect."""
        self._events.append(Refusal(self._ticket.id, code, message, event_id, param))

    def end(self) -> None:
        """Nothing more comes; `Done` follows the last final."""
        self._ending = True
        self._commit()
        self._say_finished()

    # --- turns --------------------------------------------------------------------------------------------------------

    @property
    def _held(self) -> int:
        return self._buffer.end - self._uncommitted

    def _begin(self, change: Began) -> None:
        assert self._request.turn_detection is not None
        padding = self._request.turn_detection.prefix_padding_ms * SAMPLE_RATE // 1000
        start = max(change.speech - padding, self._uncommitted, self._buffer.start)
        item = self._items.new(start, change.seen, self._request.language)
        self._turn = Turn(item, change.speech, start, decoded=change.speech)
        self._events.append(SpeechStarted(self._ticket.id, item.number, seconds(start)))

    def _finish(self, speech_end: int, seen: int) -> None:
        turn, self._turn = self._turn, None
        assert turn is not None
        item = turn.item
        item.speech_end, item.end = speech_end, seen
        self._uncommitted = seen
        self._drop_partial(turn)
        self._events.append(SpeechStopped(self._ticket.id, item.number, seconds(seen)))
        self._events.append(Committed(self._ticket.id, item.number))
        end = max(min(seen, speech_end + TAIL), turn.start + FRAME)
        self._finalise(item, Cut((Span(turn.start, end),)), turn, last=True)

    def _grow(self) -> None:
        """Cut a turn that no longer fits a window. No word that was committed lies behind the cut."""
        turn = self._turn
        if turn is None:
            self._forget()
            return
        length = self._buffer.frames - turn.start
        if length < LONG_SECTION:
            return
        earliest = max(turn.start + SAMPLE_RATE, turn.agreement.until, self._buffer.frames - CUT_RANGE)
        first, last = -(-earliest // FRAME), self._buffer.frames // FRAME
        if last - first < 2:
            return
        probabilities = self._buffer.probabilities(first * FRAME, last * FRAME)
        lowest = quietest(probabilities, 0, len(probabilities))
        if length < MAX_SECTION and probabilities[lowest] > DIP:
            return
        middle = (first + lowest) * FRAME
        self._split(turn, middle)

    def _split(self, turn: Turn, middle: int) -> None:
        """End a turn's section. No word that was committed lies behind `middle`."""
        self._drop_partial(turn)
        self._finalise(turn.item, Cut((Span(turn.start, middle),)), turn, last=False)
        self._turn = Turn(turn.item, middle, middle, decoded=middle)

    def _commit(self) -> None:
        """Make an item of what is held, if there is any."""
        if self._turn is not None and self._detector is not None:
            self._detector.stop()
            self._finish(self._detector.last_speech, self._buffer.end)
        elif self._detector is None and self._held >= MIN_COMMIT:
            self._commit_buffer()

    def _commit_buffer(self) -> None:
        start, end = self._uncommitted, self._buffer.end
        self._uncommitted, self._overflowing = end, False
        item = self._items.new(start, end, self._request.language)
        item.end = end
        self._events.append(Committed(self._ticket.id, item.number))
        offset = start // FRAME * FRAME
        cuts = cut(self._buffer.probabilities(offset, end), end - offset)
        for index, each in enumerate(cuts):
            spans = tuple(Span(span.start + offset, span.end + offset) for span in each.spans)
            self._finalise(item, Cut(spans), None, last=index == len(cuts) - 1)
        if not cuts:
            self._items.append(Section(item, Cut((Span(start, end),)), (), None, last=True, done=True))
            self._say_finished()

    def partial(self, interval: float) -> None:
        """Queue a run over the open turn, if `interval` seconds have come since the last.

        Not while an earlier section of it is still to be said. A run that waits unseen gives way to the newer one,
        which takes over its place.
        """
        turn, end = self._turn, self._buffer.end
        if turn is None or self._items.awaits(turn.item):
            return
        # Speech alone counts: in the silence that may end the turn, a partial would only hold up the final.
        spoken = end if self._detector is None else self._detector.last_speech
        fresh = spoken - turn.decoded
        stale = turn.partial
        if fresh < interval * SAMPLE_RATE or end - turn.speech < FIRST_PARTIAL:
            return
        if stale is not None and stale.stage is not Stage.ENCODE:
            return
        self._drop_partial(turn)
        turn.decoded = end
        audio = self._buffer.samples(turn.start, end)
        speech = self._speech(turn.start, end)
        speech = Cut((Span(turn.start, end),)).within(speech)
        turn.partial = self._window(Lane.PARTIAL, turn.item, audio, turn, speech)
        if stale is not None:
            turn.partial.queued = stale.queued
        self._windows.append(turn.partial)

    # --- what comes back (windows.Owner) ------------------------------------------------------------------------------

    def detected(self, window: Window, probabilities: dict[str, float]) -> list[Window]:
        likeliest = max(probabilities, key=lambda code: probabilities[code])
        window.language = likeliest
        turn = self._turn
        if turn is not None and turn.partial is window and probabilities[likeliest] >= LANGUAGE_THRESHOLD:
            turn.item.language = likeliest
        return [window]

    def finished(self, window: Window) -> None:
        self._generated += sum(len(each.tokens) for each in window.tried)
        turn = self._turn
        if turn is not None and turn.partial is window:
            turn.partial = None
            self._say_partial(turn, window)
            return
        self._items.settle(window)
        self._say_finished()
        self._acknowledge()

    def _say_partial(self, turn: Turn, window: Window) -> None:
        found = window.result
        if found is None or window.language is None or is_silent(found) or is_degenerate(found, window.seconds):
            return
        tokens = found.tokens
        if window.missing:  # words behind something that was left out wait for it
            tokens = tuple(token for word in window.words[: window.missing[0].first] for token in word.tokens)
        words = self._options.model.words(tokens[window.fixed :], window.language)
        seen = turn.start + len(window.audio)
        fresh, rest = turn.agreement.update(words, seen, commit=seen - turn.speech >= MIN_AGREED)
        if fresh:
            turn.prefix = self._options.model.beginning(found, len(turn.agreement.tokens))
        self._events.append(self._items.partial(turn.item, fresh, rest, turn.speech, seen))
        self._seek(turn, window)

    def _seek(self, turn: Turn, window: Window) -> None:
        """Go on with a new section where a run left out what stands behind a pause."""
        if not window.missing:
            return
        hole = window.missing[0]
        before = pause_before(hole.start, window.speech)
        if before is not None and hole.end - hole.start >= LEFT_OUT:
            self._split(turn, turn.start + (before + hole.start) // 2)

    def _say_finished(self) -> None:
        """Sections that are done; after the last one of a stream that ends, its end."""
        self._events += self._items.finished()
        self._forget()
        if self._ending and not self._items.pending:
            total = monotonic() - self._ticket.received
            self._events.append(Done(self._ticket.id, Usage(0, self._generated), Timing(compute=total, total=total)))

    # --- small things -------------------------------------------------------------------------------------------------

    def _finalise(self, item: Item, where: Cut, turn: Turn | None, *, last: bool) -> None:
        start, end = where.spans[0].start, where.spans[-1].end
        local = Cut(tuple(Span(span.start - start, span.end - start) for span in where.spans))
        speech = self._speech(start, end)
        audio = local.take(self._buffer.samples(start, end))
        window = self._window(Lane.FINAL, item, audio, turn, where.within(speech))
        self._items.append(Section(item, where, speech, window, last))
        self._windows.append(window)

    def _speech(self, start: int, end: int) -> tuple[Span, ...]:
        """Where there is speech in [start, end), in positions of the stream."""
        offset = start // FRAME * FRAME
        threshold = self._request.turn_detection.threshold if self._request.turn_detection else 0.5
        spans = speech_spans(self._buffer.probabilities(start, end), threshold, WORD_PAUSE_MS)
        return tuple(Span(span.start + offset, span.end + offset) for span in spans)

    def _window(self, lane: Lane, item: Item, audio: Samples, turn: Turn | None, speech: tuple[Span, ...]) -> Window:
        final = lane is Lane.FINAL
        return Window(
            ticket=self._ticket,
            owner=self,
            lane=lane,
            number=item.number,
            audio=audio,
            queued=monotonic(),
            speech=speech,
            language=item.language,
            context=self._context,
            prefix=turn.prefix if turn is not None else (),
            fixed=len(turn.agreement.tokens) if turn is not None else 0,
            temperatures=TEMPERATURES if final else TEMPERATURES[:1],
            full=self._options.full and final,
            aligned=final and self._request.words,
        )

    def _drop_partial(self, turn: Turn) -> None:
        if turn.partial is not None:
            self.dropped_partials += 1
            self._dropped.append(turn.partial)
            turn.partial = None

    def _acknowledge(self) -> None:
        """Let the client go on, unless there is too much that waits for its final run."""
        if self._items.backlog <= MAX_BACKLOG and self._received - self._acknowledged >= ACKNOWLEDGED:
            self._acknowledged = self._received
            self._events.append(Acknowledged(self._ticket.id, self._received / SAMPLE_RATE))

    def _forget(self) -> None:
        """Let go of the past that nothing refers to; before a turn, what its padding may take stays."""
        keep = self._uncommitted
        if self._detector is not None and self._turn is None:
            padding = self._detector.options.prefix_padding_ms * SAMPLE_RATE // 1000
            keep = max(keep, self._buffer.end - padding - 2 * ONSET * FRAME)
        if self._turn is not None:
            keep = self._turn.start
        earliest = self._items.earliest
        self._buffer.forget(keep if earliest is None else min(keep, earliest))
