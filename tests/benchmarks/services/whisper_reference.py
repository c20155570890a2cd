"""faster-whisper's own `WhisperModel.transcribe`, or its BatchedInferencePipeline. Arguments: a folder, threads, which.

Requests and answers as in `transcriber.py`; files one after the other, as the library takes them. The options are those
of the pipeline: int8, a beam of 5, time tokens, and nothing taken over from the text before.
"""

import sys
from typing import Any

from faster_whisper import BatchedInferencePipeline, WhisperModel

from tests.benchmarks.services.loop import serve

BATCH = 8


class Reference:
    def __init__(self, path: str, threads: int, which: str) -> None:
        self._model = WhisperModel(path, device="cpu", compute_type="int8", cpu_threads=threads)
        self._batched = BatchedInferencePipeline(self._model) if which == "batched" else None

    def __call__(self, request: dict[str, Any]) -> list[tuple[str, str]]:
        return [self._transcribe(path, request["language"]) for path in request["files"]]

    def _transcribe(self, path: str, language: str | None) -> tuple[str, str]:
        options: dict[str, Any] = {"language": language, "beam_size": 5, "without_timestamps": False}
        if self._batched is not None:
            segments, info = self._batched.transcribe(path, batch_size=BATCH, **options)
        else:
            segments, info = self._model.transcribe(path, condition_on_previous_text=False, **options)
        return "".join(segment.text for segment in segments).strip(), info.language


if __name__ == "__main__":
    serve(Reference(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
