"""What can be done for the configured models before the first start: `gateway models prepare`."""

from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic

from gateway.config.settings import Settings
from models.errors import ModelLoadError


@dataclass(frozen=True, slots=True)
class Outcome:
    text: str  # for people
    failed: bool = False


def prepare_models(settings: Settings) -> Iterator[tuple[str, Outcome]]:
    """Each embedding model's name, and what was done for it, as it is done: an export takes some ten seconds."""
    from pipelines.embedding.loading import prepare

    for model in settings.models:
        if model.kind != "embedding":
            continue
        began = monotonic()
        try:
            done = prepare(model.spec())
        except ModelLoadError as error:
            yield model.name, Outcome(str(error), failed=True)
            continue
        yield model.name, Outcome(f"exported in {monotonic() - began:.1f} s" if done else "ready")
