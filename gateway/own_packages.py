"""Whether `models`, `metrics` and `pipelines` are this project's: other distributions have packages of these names."""

from importlib.util import find_spec
from pathlib import Path

HOME = Path(__file__).parent.parent  # the folder that all of ours are in
DISTRIBUTION = "multimodal-gateway"

# A package of ours -> the first words of its description, by which its own __init__.py is known.
PACKAGES = {
    "pipelines": '"""The step loops, one package a modality.',
    "models": '"""From files to something that a runner can call.',
    "metrics": '"""Latency metrics: raw events in,',
}


def foreign_package() -> str | None:
    """Why this can't run, for the operator: which package is not ours, where it is, what to do. None: all of them are.

    Nothing is imported.
    """
    for name, words in PACKAGES.items():
        spec = find_spec(name)
        if spec is None:
            return f"its package {name!r} is missing: pip install --force-reinstall {DISTRIBUTION}"
        if spec.origin is None:  # a folder without an __init__.py
            where = [Path(folder) for folder in spec.submodule_search_locations or ()]
        else:
            where = [Path(spec.origin).parent]
        if where != [HOME / name] or not _begins(HOME / name / "__init__.py", words):
            return (
                f"{name!r} is not its own package here, but another's: {', '.join(map(str, where)) or spec.origin}. "
                f"Install {DISTRIBUTION} into a virtual environment of its own; keep such folders out of PYTHONPATH."
            )
    return None


def _begins(file: Path, words: str) -> bool:
    try:
        with file.open(encoding="utf-8") as text:
            return text.read(len(words)) == words
    except (OSError, UnicodeDecodeError):
        return False
