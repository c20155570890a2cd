"""What is configured, and what could be: `gateway models`."""

from pathlib import Path

from msgspec import Struct

from gateway.settings import ModelSettings, Settings
from models.catalog import EMBEDDED
from models.errors import SourceError
from models.source import resolve


class ConfiguredModel(Struct, frozen=True):
    name: str
    aliases: list[str]
    kind: str
    source: str
    device: str
    path: str | None  # None: not found, see `problem`
    bytes: int | None
    problem: str | None = None


class EmbeddedModel(Struct, frozen=True):
    name: str
    kind: str
    package: str
    installed: bool
    configured: bool


class Inventory(Struct, frozen=True):
    configured: list[ConfiguredModel]
    embedded: list[EmbeddedModel]


def inventory(settings: Settings) -> Inventory:
    sources = {model.source for model in settings.models}
    return Inventory(
        configured=[_configured(model) for model in settings.models],
        embedded=[
            EmbeddedModel(
                name=name,
                kind=entry.kind,
                package=entry.package,
                installed=entry.installed,
                configured=f"embedded:{name}" in sources,
            )
            for name, entry in EMBEDDED.items()
        ],
    )


def size(path: Path) -> int:
    """Bytes of a file, or of all files below a folder."""
    if path.is_file():
        return path.stat().st_size
    return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())


def _configured(model: ModelSettings) -> ConfiguredModel:
    path: Path | None = None
    problem = None
    # A hub's repository may have to be fetched: its worker does that, a listing does not.
    if not model.source.startswith("hf:"):
        try:
            path = resolve(model.source)
        except SourceError as error:
            problem = str(error)
    return ConfiguredModel(
        name=model.name,
        aliases=list(model.aliases),
        kind=model.kind or "",
        source=model.source,
        device=model.device,
        path=str(path) if path else None,
        bytes=size(path) if path else None,
        problem=problem,
    )
