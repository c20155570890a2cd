"""A small real pipeline without a model, run in the real worker: `spec.pipeline = "tests.fakes:FakePipeline"`.

It answers with the words of the prompt, one a step and choice, in a batch of `max_num_seqs` slots. Words of the prompt
that start with "!" steer it (of a chat, those of the last message), for example "!step-ms=5 !tokens=100 one two":

    in prepare   !bad !too-long !prepare-error !slow-prepare=MS !die-prepare
    pacing       !tokens=N (words repeat) !step-ms=MS (every step it is in) !delay-ms=MS (before its first token)
    faults       !crash-step (StepFailed, alone too) !flaky-step (StepFailed once, fine alone) !step-error (any other
                 exception) !device-lost !die (SIGKILL) !hang (a step that never ends) !freeze (SIGSTOP)
                 each strikes in the request's second step, or the Nth with "=N"
    streams      !stream: goes on with the words of each `Audio` fed, ends at its `End`

Images of a chat are words, too, of their length and detail, where `spec.source` is "fake:sees".

`spec.source` steers loading: "fake:" loads at once, "fake:missing" can never load, "fake:flaky:PATH" fails until the
file exists (and makes it), "fake:slow:SECONDS", "fake:broken:HOW" ends as LOAD_FAULTS has it,
"fake:broken-by:PATH" fails while the file exists.
"""

import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from metrics.definitions.text import PREEMPTIONS
from pipelines.base import InvalidRequest, ModelError, StepFailed, StepResult, Ticket
from pipelines.messages.audio import Audio, decode_item
from pipelines.messages.frames import Done, Event, ModelSpec, Ready, Stats, StepReport, Timing, Usage
from pipelines.messages.text import (
    ChatPrompt,
    ChoiceDone,
    Delta,
    FinishReason,
    Part,
    Prompt,
    StringPrompt,
    TextOptions,
    TextPart,
    TextRequest,
    TokenLogprob,
    TopLogprob,
)
from pipelines.text.prompt.effort import effort

FAULTS = frozenset({"crash-step", "flaky-step", "step-error", "device-lost", "die", "hang", "freeze"})


def _panic() -> None:
    raise BaseException("a library panicked")


LOAD_FAULTS: dict[str, Callable[[], object]] = {
    "error": lambda: {}["a key"],
    "memory": lambda: bytearray(1 << 60),
    "panic": _panic,
    "sys-exit": lambda: sys.exit("a library gave up"),
    "exit": lambda: os._exit(0),
    "segv": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
}


def fake_spec(
    name: str = "fake", *, source: str = "fake:", slots: int = 8, prepare_threads: int = 2
) -> ModelSpec[TextOptions]:
    """A model that the fake pipeline serves."""
    return ModelSpec(
        name=name,
        kind="text",
        pipeline="tests.fakes:FakePipeline",
        source=source,
        options=TextOptions(max_num_seqs=slots, prepare_threads=prepare_threads),
    )


class AcceleratorError(RuntimeError):
    """Looks like torch's error for a lost device, to whoever reads its text."""


@dataclass(slots=True)
class FakeWork:
    """One choice: the words still to say."""

    ticket: Ticket
    index: int
    prompt_tokens: int
    words: deque[str]
    reason: FinishReason
    directives: dict[str, str]
    logprobs: int | None
    prepared: float
    admitted: float = 0.0
    started: float = 0.0
    first_token: float = 0.0
    steps: int = 0
    said: int = 0

    def number(self, directive: str, default: float = 0.0) -> float:
        return float(self.directives.get(directive) or default)

    @property
    def waits(self) -> bool:
        """An open stream that has said all it was fed, or a delay that is not over."""
        return (not self.words and "stream" in self.directives) or (
            self.said == 0 and monotonic() < self.admitted + self.number("delay-ms") / 1e3
        )


@dataclass(slots=True)
class FakeChunk:
    """What one chunk of a stream adds to its request. None: the stream has ended."""

    ticket: Ticket
    words: list[str] | None
    prompt_tokens: int = 0


@dataclass(slots=True)
class Progress:
    """What one request still owes."""

    choices: int
    usage_prompt: int
    completion: int = 0
    works: list[FakeWork] = field(default_factory=list)


class FakePipeline:
    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._waiting: deque[FakeWork] = deque()
        self._running: list[FakeWork] = []
        self._progress: dict[str, Progress] = {}
        self._flaked: set[str] = set()
        self._aborted = 0

    @classmethod
    def load(cls, spec: ModelSpec[TextOptions]) -> "tuple[FakePipeline, Ready]":
        match spec.source.split(":", 2):
            case ["fake", "missing"]:
                raise ModelError("the fake model is missing")
            case ["fake", "flaky", path]:
                if not Path(path).exists():
                    Path(path).touch()
                    raise RuntimeError("secret words of a library")
            case ["fake", "slow", seconds]:
                time.sleep(float(seconds))
            case ["fake", "broken-by", path]:
                if Path(path).exists():
                    raise RuntimeError("broken by a file")
            case ["fake", "broken", how]:
                LOAD_FAULTS[how]()
        slots = spec.options.max_num_seqs
        sees = spec.source == "fake:sees"
        return cls(slots), Ready(slots=slots, context_length=4096, details={"device": "none"}, images=sees)

    # --- pool threads -------------------------------------------------------------------------------------------------

    def prepare(self, ticket: Ticket, request: TextRequest) -> list[FakeWork]:
        works: list[FakeWork] = []
        for number, prompt in enumerate(request.prompts):
            words = prompt_words(prompt)
            directives = dict(_directive(word) for word in words if word.startswith("!"))
            said = [word for word in words if not word.startswith("!")]
            _prepare_faults(directives)
            wanted = int(directives.get("tokens") or len(said))
            said = [said[i % len(said)] if said else f"w{i}" for i in range(wanted)]
            limit = request.sampling.max_tokens
            reason: FinishReason = "stop" if limit is None or wanted <= limit else "length"
            works.extend(
                FakeWork(
                    ticket=ticket,
                    index=number * request.n + choice,
                    prompt_tokens=len(words) if choice == 0 else 0,
                    words=deque(said[:limit]),
                    reason=reason,
                    directives=directives,
                    logprobs=request.sampling.logprobs,
                    prepared=monotonic(),
                )
                for choice in range(request.n)
            )
        return works

    def brief(self, request: TextRequest) -> bool:
        words = [word for prompt in request.prompts for word in prompt_words(prompt)]
        return len(words) < 100 and not any(word.startswith(("!slow-prepare", "!die-prepare")) for word in words)

    def effort(self, request: TextRequest) -> int:
        return effort(request)

    def feed(self, ticket: Ticket, data: bytes) -> list[FakeChunk]:
        item = decode_item(data)
        if item == Audio(b"!bad"):
            raise InvalidRequest("a chunk that is no good", param="data")
        return [FakeChunk(ticket, item.data.decode().split() if isinstance(item, Audio) else None)]

    # --- engine thread ------------------------------------------------------------------------------------------------

    def admit(self, works: Sequence[FakeWork | FakeChunk]) -> None:
        for work in works:
            if isinstance(work, FakeChunk):
                for target in self._progress[work.ticket.id].works:
                    if work.words is None:
                        del target.directives["stream"]
                    else:
                        target.words.extend(work.words)
                continue
            work.admitted = monotonic()
            progress = self._progress.setdefault(work.ticket.id, Progress(0, 0))
            progress.choices += 1
            progress.usage_prompt += work.prompt_tokens
            progress.works.append(work)
            self._waiting.append(work)

    def abort(self, request_id: str) -> None:
        if self._progress.pop(request_id, None) is None:
            return
        self._aborted += 1
        self._running = [work for work in self._running if work.ticket.id != request_id]
        self._waiting = deque(work for work in self._waiting if work.ticket.id != request_id)

    @property
    def busy(self) -> bool:
        if self._waiting and len(self._running) < self._slots:
            return True
        return any(not (work.waits and "stream" in work.directives) for work in self._running)

    def step(self, only: str | None = None) -> StepResult:
        while self._waiting and len(self._running) < self._slots:
            self._running.append(self._waiting.popleft())
        batch = [work for work in self._running if only is None or work.ticket.id == only]
        batch = [work for work in batch if not work.waits]
        if not batch:
            time.sleep(0.001)
            return StepResult()
        began = monotonic()
        self._strike(batch, alone=only is not None)
        pause = max(work.number("step-ms") for work in batch) / 1e3
        if pause:
            time.sleep(pause)
        now = monotonic()
        events: list[Event] = []
        for work in batch:
            self._say(work, began, now, events)
        return StepResult(events, StepReport("decode", len(batch), len(batch), now - began))

    def stats(self) -> Stats:
        return Stats(
            running=len(self._running),
            waiting=len(self._waiting),
            counters={PREEMPTIONS.series(): self._aborted},
        )

    def _strike(self, batch: list[FakeWork], *, alone: bool) -> None:
        """Faults strike before anything is changed: a failed step leaves its requests as they were."""
        for work in batch:
            for fault in FAULTS & work.directives.keys():
                if work.steps + 1 == int(work.number(fault, 2)):
                    self._fault(fault, batch, work, alone=alone)

    def _fault(self, fault: str, batch: list[FakeWork], work: FakeWork, *, alone: bool) -> None:
        ids = dict.fromkeys(member.ticket.id for member in batch)
        match fault:
            case "crash-step":
                raise StepFailed(ids, RuntimeError("secret words of a library"))
            case "flaky-step" if not alone and work.ticket.id not in self._flaked:
                self._flaked.add(work.ticket.id)
                raise StepFailed(ids, MemoryError("the batch was too large"))
            case "step-error":
                raise RuntimeError("secret words of a library")
            case "device-lost":
                raise StepFailed(ids, AcceleratorError("CUDA error: an illegal memory access was encountered"))
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                time.sleep(3600)
            case "freeze":
                os.kill(os.getpid(), signal.SIGSTOP)

    def _say(self, work: FakeWork, began: float, now: float, events: list[Event]) -> None:
        id, received = work.ticket.id, work.ticket.received
        work.steps += 1
        work.started = work.started or began
        if work.words:
            text = ("" if work.said == 0 else " ") + work.words.popleft()
            work.said += 1
            work.first_token = work.first_token or now
            self._progress[id].completion += 1
            events.append(Delta(id, work.index, text, 1, now - received, _logprobs(text, work.logprobs)))
        if work.words or "stream" in work.directives:
            return
        events.append(ChoiceDone(id, work.index, work.reason))
        self._running.remove(work)
        progress = self._progress[id]
        progress.choices -= 1
        if progress.choices == 0:
            del self._progress[id]
            first_token = work.first_token or now
            timing = Timing(
                prepare=work.prepared - received,
                queue=work.started - work.prepared,
                compute=now - work.started,
                total=now - received,
                prefill=first_token - work.started,
                decode=now - first_token,
            )
            events.append(Done(id, Usage(progress.usage_prompt, progress.completion), timing))


def prompt_words(prompt: Prompt) -> list[str]:
    match prompt:
        case StringPrompt(text=text):
            return text.split()
        case ChatPrompt(messages=messages):
            parts = messages[-1].content if messages else []
            return " ".join(_words(part) for part in parts).split()
        case _:
            return [f"t{id}" for id in prompt.ids]


def _words(part: Part) -> str:
    return part.text if isinstance(part, TextPart) else f"image:{len(part.data)}:{part.detail}"


def _directive(word: str) -> tuple[str, str]:
    name, _, value = word[1:].partition("=")
    return name, value


def _prepare_faults(directives: dict[str, str]) -> None:
    if "slow-prepare" in directives:
        time.sleep(float(directives["slow-prepare"]) / 1e3)
    if "bad" in directives:
        raise InvalidRequest("a word that is no good", param="messages[0].content")
    if "too-long" in directives:
        raise InvalidRequest("the prompt is too long", param="messages", code="context_length_exceeded")
    if "prepare-error" in directives:
        raise RuntimeError("secret words of a library")
    if "die-prepare" in directives:
        os.kill(os.getpid(), signal.SIGKILL)


def _logprobs(text: str, wanted: int | None) -> list[TokenLogprob]:
    if wanted is None:
        return []
    top = [TopLogprob(i, text if i == 0 else f"other{i}", -float(i + 1), text.encode()) for i in range(wanted)]
    return [TokenLogprob(0, text, -1.0, text.encode(), top)]
