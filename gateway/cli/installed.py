"""What the installed distributions say of themselves: what ours needs, what is missing, who else has its packages."""

from collections.abc import Callable, Iterable, Mapping
from importlib import metadata

from msgspec import Struct
from packaging.requirements import InvalidRequirement, Requirement

from gateway.own_packages import DISTRIBUTION, PACKAGES


class UnmetRequirement(Struct, frozen=True):
    """A requirement that is not met."""

    requirement: str  # as pip takes it
    found: str | None  # the version that is there; None: none is


def version_of(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def unmet_requirements(
    required: Iterable[str] | None = None, version: Callable[[str], str | None] = version_of
) -> list[UnmetRequirement]:
    """Of what this project needs on this platform; nothing where it runs without having been installed."""
    found = []
    for text in _required() if required is None else required:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        there = next((v for name in _equivalents(requirement.name) if (v := version(name)) is not None), None)
        if there is None or not requirement.specifier.contains(there, prereleases=True):
            found.append(UnmetRequirement(f"{requirement.name}{requirement.specifier}", there))
    return found


def _required() -> list[str]:
    try:
        return metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return []


def _equivalents(name: str) -> tuple[str, ...]:
    """Distributions that bring the same packages."""
    return (name, "onnxruntime-gpu", "onnxruntime-openvino") if name == "onnxruntime" else (name,)


def conflicting_packages(owners: Mapping[str, list[str]] | None = None) -> dict[str, list[str]]:
    """Packages of ours -> other distributions that install packages of the same name into the same folders."""
    owners = metadata.packages_distributions() if owners is None else owners
    others = {
        name: sorted({owner for owner in owners.get(name, []) if owner != DISTRIBUTION})
        for name in ("gateway", *PACKAGES)
    }
    return {name: names for name, names in others.items() if names}
