"""The text pipeline's step loop, without the gateway around it. Argument: a ModelSpec as JSON.

{"prompts": [[id, …] | text, …], "tokens": n, "proposer": kind, "max_draft": n, "schema": text} -> [[seconds since the
request for each token], …], in the order of the prompts. `max_draft`: tokens of a draft, 0 for none. `proposer`,
`max_draft` absent: as the spec has it. `schema`: what the texts are kept to.
"""

import sys
from itertools import count
from time import monotonic
from typing import Any

import msgspec

from pipelines.base import Ticket
from pipelines.messages.frames import Failed, ModelSpec
from pipelines.messages.grammar import Grammar
from pipelines.messages.sampling import Sampling
from pipelines.messages.text import Delta, StringPrompt, TextOptions, TextRequest, TokenPrompt
from pipelines.text.pipeline import TextPipeline
from tests.benchmarks.services.loop import serve


class EngineService:
    def __init__(self, spec: ModelSpec[TextOptions]) -> None:
        self._pipeline, _ = TextPipeline.load(spec)
        self._ids = map(str, count())

    def __call__(self, request: dict[str, Any]) -> list[list[float]]:
        schema = request.get("schema")
        sampling = Sampling(
            temperature=0.0,
            max_tokens=request["tokens"],
            ignore_eos=True,
            grammar=None if schema is None else Grammar("json_schema", schema),
        )
        stamps: dict[str, list[float]] = {}
        start = monotonic()
        for ids in request["prompts"]:
            ticket = Ticket(next(self._ids), "interactive", start)
            stamps[ticket.id] = []
            prompt = TextRequest(
                prompts=[StringPrompt(ids) if isinstance(ids, str) else TokenPrompt(ids)],
                sampling=sampling,
                proposer=request.get("proposer"),
                max_draft=request.get("max_draft"),
            )
            self._pipeline.admit(self._pipeline.prepare(ticket, prompt))
        while self._pipeline.busy:
            events = self._pipeline.step().events
            now = monotonic() - start
            for event in events:
                if isinstance(event, Delta):
                    stamps[event.id].extend([now] * event.tokens)
                elif isinstance(event, Failed):
                    raise RuntimeError(event.message)
        return list(stamps.values())


if __name__ == "__main__":
    serve(EngineService(msgspec.json.decode(sys.argv[1], type=ModelSpec[TextOptions])))
