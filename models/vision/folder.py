"""The half that sees, described by a folder as transformers saves a model: a whole one's, or its own."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.files.description import read_json
from models.files.fields import Fields
from models.files.safetensors_header import read_header
from models.vision.families.family import Family
from models.vision.families.listed import of_class
from models.vision.half import Half, Weights

log = logging.getLogger(__name__)

_INDEX, _WHOLE = "model.safetensors.index.json", "model.safetensors"


def read_folder(path: Path) -> Half | None:
    """None: nothing sees by these files. Raises ModelLoadError."""
    config = read_json(path / "config.json")
    family = None if config is None else _family(config)
    if config is None or family is None or not _has_weights(path, family):
        return None
    settings, where = _settings(path)
    if settings is None:
        log.warning("%s has no preprocessor_config.json: no pictures can be made ready for it", path)
        return None

    def open_weights() -> Weights:
        from models.files.safetensors import SafetensorsFiles

        return SafetensorsFiles(path)

    as_written = json.loads((path / "config.json").read_bytes())
    template = _chat_template(path)
    return Half(family, f"config.json of {family.classes}", config, as_written, where, settings, template, open_weights)


def _family(config: Mapping[str, Any]) -> Family | None:
    fields = Fields(config, "config.json")
    architectures = fields.items("architectures", str, "texts")
    return of_class(architectures[0] if architectures else None, fields.text("model_type", "none"))


def _has_weights(folder: Path, family: Family) -> bool:
    """Whether there is any of them: the language half of a model is often given alone, with the config of both."""
    index = read_json(folder / _INDEX)
    if index is not None:
        names = list(Fields(index, str(folder / _INDEX)).table("weight_map") or {})
    else:
        names = list(read_header(folder / _WHOLE)) if (folder / _WHOLE).is_file() else []
    begin = tuple(each for theirs in family.weights.values() for each in theirs)
    return any(name.startswith(begin) for name in names)


def _settings(folder: Path) -> tuple[Mapping[str, Any] | None, str]:
    """The image processor's, and where they are: newer files have them with the rest of the processor's."""
    whole = folder / "processor_config.json"
    inner = Fields(read_json(whole) or {}, str(whole)).table("image_processor")
    if inner is not None:
        return inner, str(whole)
    alone = folder / "preprocessor_config.json"
    return read_json(alone), str(alone)


def _chat_template(folder: Path) -> str | None:
    """The processor's, which knows of pictures, where it has one of its own."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text()
    older = folder / "chat_template.json"
    return Fields(read_json(older) or {}, str(older)).text("chat_template", "") or None
