"""The audio pipeline's step loop, without the gateway around it. Arguments: a CTranslate2 folder, threads, window mode.

{"files": [path, …], "language": code or null} -> [[text, language], …], all of them at once.
"""

import sys
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any

from models.whisper.model import load_whisper
from pipelines.audio.files.formats import text_of
from pipelines.audio.pipeline import AudioPipeline
from pipelines.base import Ticket
from pipelines.messages.audio import AudioOptions, Passage, TranscriptionRequest
from tests.benchmarks.services.loop import serve


class Transcriber:
    def __init__(self, path: Path, threads: int, window: Any) -> None:
        model = load_whisper(path, device="cpu", compute_type="int8", threads=threads)
        self._pipeline = AudioPipeline(model, AudioOptions(window=window))
        self._pipeline.warm_up()
        self._ids = map(str, count())

    def __call__(self, request: dict[str, Any]) -> list[tuple[str, str]]:
        passages: dict[str, list[Passage]] = {}
        for path in request["files"]:
            ticket = Ticket(next(self._ids), "interactive", monotonic())
            passages[ticket.id] = []
            work = TranscriptionRequest(path=path, language=request["language"])
            self._pipeline.admit(self._pipeline.prepare(ticket, work))
        while self._pipeline.busy:
            for event in self._pipeline.step().events:
                if isinstance(event, Passage):
                    passages[event.id].append(event)
        return [
            (text_of(segment for passage in said for segment in passage.segments), said[0].language)
            for said in passages.values()
        ]


if __name__ == "__main__":
    serve(Transcriber(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
