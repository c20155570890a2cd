"""An embedding worker whose answers the test speaks."""

from typing import Any

import numpy as np

from pipelines.messages.embedding import EmbeddingRequest, RerankRequest, Scores, Vectors
from pipelines.messages.frames import Accepted, Done, Event, Timing, Usage
from pipelines.messages.text import ChoiceDone
from tests.gateway.scripted import ScriptedBackend, ScriptedCall
from tests.gateway.scripted_app import ScriptedApp


def vector(index: int) -> Any:
    return np.array([index + 0.25, -1 / (index + 3), 1e-7], "<f4")


def answered(call: ScriptedCall) -> None:
    """Vectors in two steps, the last inputs first; scores that fall with the documents' length."""
    request, id = call.call.request, call.call.id
    events: list[Event] = []
    if isinstance(request, EmbeddingRequest):
        order = list(range(len(request.inputs)))[::-1]
        parts = [part for part in (order[: len(order) // 2], order[len(order) // 2 :]) if part]
        events += [Vectors(id, part, b"".join(vector(index).tobytes() for index in part)) for part in parts]
    elif isinstance(request, RerankRequest):
        events.append(Scores(id, "cosine", [1 / len(text) for text in request.documents]))
    timing = Timing(prepare=0.001, queue=0.002, compute=0.003, total=0.006)
    call.say(Accepted(id, 7, 0.0))
    for event in [*events, ChoiceDone(id, 0, "stop"), Done(id, Usage(prompt_tokens=7), timing)]:
        call.say(event)


class Embedding(ScriptedBackend):
    kind = "embedding"


def opened(it: ScriptedApp) -> Any:
    return it.backend.calls[-1].call.request
