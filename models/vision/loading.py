"""From files to what a model sees with.

`path` is a folder as transformers saves a model: a whole one's, or one that holds the half that sees alone, for a
language model of other files. The latter has

- `config.json`: the class of a family, its `vision_config`, `text_config` with the language model's `hidden_size`, and
  ids of the tokens in that model's vocabulary, all special ones (the families' modules say which; of Idefics 3 also
  those that stand around a picture);
- `preprocessor_config.json`: the image processor's settings; a key of ours, `pad_to_square`, is the colour of bars that
  make a picture a square before anything else is done with it;
- `chat_template.jinja`: for each picture it writes the placeholder once, as the language model's vocabulary spells it;
- `model.safetensors`: the weights, by the names of transformers' class.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.errors import ModelLoadError
from models.files.description import read_json
from models.files.fields import Fields
from models.files.safetensors_header import read_header
from models.tokenizer.tokenizer import Tokenizer
from models.vision.families.family import Description, Family, kind_of_tower, require_sizes
from models.vision.families.listed import of_class
from models.vision.image import ImageProcessor, Tower
from models.vision.vision import Vision

log = logging.getLogger(__name__)

_INDEX, _WHOLE = "model.safetensors.index.json", "model.safetensors"


def load_vision(
    path: Path,
    hidden_size: int,
    tokenizer: Tokenizer,
    *,
    device: str = "auto",
    dtype: str | None = None,
    threads: int | None = None,
) -> Vision | None:
    """Reads descriptions alone; weights come with `load_tower`. None: nothing sees by these files.

    `hidden_size`, `tokenizer`: of the language model. `threads`: of kernels, torch's process-wide; None: as they are.
    Raises ModelLoadError naming what is not supported.
    """
    config = read_json(path / "config.json")
    family = None if config is None else _family(config)
    if config is None or family is None or not _has_weights(path, family):
        return None
    settings, where = _settings(path)
    if settings is None:
        log.warning("%s has no preprocessor_config.json: no pictures can be made ready for it", path)
        return None
    description = _describe(family, config, settings, where, tokenizer)
    width = family.width(description)
    if width not in (None, hidden_size):
        raise ModelLoadError(f"{path}: its rows are {width} wide, where the language model has {hidden_size}")
    tokens = family.tokens(description)

    def load_processor() -> ImageProcessor:
        from models.vision.processor import FamilyProcessor

        return FamilyProcessor(family, settings, tokens, where)

    def load_tower() -> Tower:
        from models.vision.tower_loading import load_tower

        return load_tower(family, path, hidden_size, device=device, dtype=dtype, threads=threads)

    return Vision(
        family=family.name,
        placeholder=tokens.placeholder,
        bidirectional=family.bidirectional,
        chat_template=_chat_template(path),
        positions=family.positions,
        load_processor=load_processor,
        load_tower=load_tower,
        around=family.around,
    )


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


def _describe(
    family: Family, config: Mapping[str, Any], settings: Mapping[str, Any], where: str, tokenizer: Tokenizer
) -> Description:
    fields = Fields(config, f"config.json of {family.classes}")
    table = fields.table("vision_config")
    if table is None:
        raise ModelLoadError(f"{fields.where} lacks vision_config")
    of_vision = f"{fields.where}, vision_config"
    kind = kind_of_tower(family, table, of_vision)
    vision = Fields({**family.towers[kind], **table}, of_vision)
    require_sizes(vision)
    return Description(fields, vision, Fields(settings, where), tokenizer, kind)


def _chat_template(folder: Path) -> str | None:
    """The processor's, which knows of pictures, where it has one of its own."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text()
    older = folder / "chat_template.json"
    return Fields(read_json(older) or {}, str(older)).text("chat_template", "") or None
