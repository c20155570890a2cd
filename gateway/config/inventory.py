"""What is configured, and what could be: `gateway models`."""

from pathlib import Path

from msgspec import Struct

from gateway.config.settings import ModelSettings, Settings
from models.errors import SourceError
from models.files.catalog import EMBEDDED
from models.files.source import resolve


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
    packages: list[str] = []  # all that it is split over


class Inventory(Struct, frozen=True):
    configured: list[ConfiguredModel]
    embedded: list[EmbeddedModel]


def inventory(settings: Settings) -> Inventory:
    sources = {source for model in settings.models for source in _sources(model)}
    return Inventory(
        configured=[_configured(model) for model in settings.models],
        embedded=[
            EmbeddedModel(
                name=name,
                kind=entry.kind,
                package=entry.package,
                packages=list(dict.fromkeys([entry.package, *(package for package, _, _ in entry.parts)])),
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


def _find(source: str) -> tuple[Path | None, str | None]:
    """Where it is, and what is wrong with it; neither of a hub's repository, which its worker may have to fetch."""
    if source.startswith("hf:"):
        return None, None
    try:
        return resolve(source), None
    except SourceError as error:
        return None, str(error)


def _sources(model: ModelSettings) -> tuple[str, ...]:
    """Its own, and those of what is loaded with it."""
    return (model.source, *(model.options.sources if model.options else ()))


def _configured(model: ModelSettings) -> ConfiguredModel:
    path, _ = _find(model.source)
    problems = (problem for _, problem in map(_find, _sources(model)) if problem)
    return ConfiguredModel(
        name=model.name,
        aliases=list(model.aliases),
        kind=model.kind or "",
        source=model.source,
        device=model.device,
        path=str(path) if path else None,
        bytes=size(path) if path else None,
        problem=next(problems, None),
    )
