"""From files to what a model sees with.

`path` is a folder as transformers saves a model: a whole one's, or one that holds the half that sees alone, for a
language model of other files; or a GGUF file that holds this half (`mmproj`). Such a folder has

- `config.json`: the class of a family, its `vision_config`, `text_config` with the language model's `hidden_size`, and
  ids of the tokens in that model's vocabulary, all special ones (the families' modules say which; of Idefics 3 also
  those that stand around a picture);
- `preprocessor_config.json`: the image processor's settings; a key of ours, `pad_to_square`, is the colour of bars that
  make a picture a square before anything else is done with it;
- `chat_template.jinja`: for each picture it writes the placeholder once, as the language model's vocabulary spells it;
- `model.safetensors`: the weights, by the names of transformers' class.
"""

from pathlib import Path

from models.errors import ModelLoadError
from models.files.fields import Fields
from models.tokenizer.tokenizer import Tokenizer
from models.vision.families.family import Description, kind_of_tower, require_sizes
from models.vision.folder import read_folder
from models.vision.half import Half
from models.vision.image import ImageProcessor, Tower
from models.vision.mmproj import read_mmproj
from models.vision.vision import Vision


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
    half = read_mmproj(path, tokenizer) if path.is_file() else read_folder(path)
    if half is None:
        return None
    family, description = half.family, _describe(half, tokenizer)
    width = family.width(description)
    if width not in (None, hidden_size):
        raise ModelLoadError(f"{path}: its rows are {width} wide, where the language model has {hidden_size}")
    tokens = family.tokens(description)

    def load_processor() -> ImageProcessor:
        from models.vision.processor import FamilyProcessor

        return FamilyProcessor(family, half.settings, tokens, half.settings_where)

    def load_tower() -> Tower:
        from models.vision.tower_loading import load_tower

        return load_tower(half, hidden_size, device=device, dtype=dtype, threads=threads)

    return Vision(
        family=family.name,
        placeholder=tokens.placeholder,
        bidirectional=family.bidirectional,
        chat_template=half.chat_template,
        positions=family.positions,
        load_processor=load_processor,
        load_tower=load_tower,
        around=family.around,
    )


def _describe(half: Half, tokenizer: Tokenizer) -> Description:
    """Raises ModelLoadError."""
    fields = Fields(half.config, half.where)
    table = fields.table("vision_config")
    if table is None:
        raise ModelLoadError(f"{fields.where} lacks vision_config")
    of_vision = f"{fields.where}, vision_config"
    kind = kind_of_tower(half.family, table, of_vision)
    vision = Fields({**half.family.towers[kind], **table}, of_vision)
    require_sizes(vision)
    return Description(fields, vision, Fields(half.settings, half.settings_where), tokenizer, kind)
