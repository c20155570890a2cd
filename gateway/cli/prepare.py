"""What can be done for the configured models before the first start: `gateway models prepare`."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic

from gateway.config.settings import Settings
from models.errors import ModelLoadError
from pipelines.kinds import KINDS, referenced
from pipelines.messages.base import Options
from pipelines.messages.frames import ModelSpec

Prepare = Callable[[ModelSpec[Options]], bool]  # what a card's `prepare` names


@dataclass(frozen=True, slots=True)
class Outcome:
    text: str  # for people
    failed: bool = False


def prepare_models(settings: Settings) -> Iterator[tuple[str, Outcome]]:
    """The name of each model of which something can be done, and what was, as it is done: an export takes some ten
    seconds."""
    for model in settings.models:
        reference = KINDS[model.kind].prepare if model.kind else None
        if reference is None:
            continue
        prepare: Prepare = referenced(reference)
        began = monotonic()
        try:
            done = prepare(model.spec())
        except ModelLoadError as error:
            yield model.name, Outcome(str(error), failed=True)
            continue
        yield model.name, Outcome(f"exported in {monotonic() - began:.1f} s" if done else "ready")
