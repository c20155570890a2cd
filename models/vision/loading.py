"""From files to what a model sees with."""

from pathlib import Path

from models.tokenizer.tokenizer import Tokenizer
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
    """Reads descriptions alone; weights come with `load_tower`. None: a model of these files can't see.

    `path`: a folder of safetensors with its `config.json`, a whole model's or one that holds the half that sees alone.
    `hidden_size`, `tokenizer`: of the language model. Raises ModelLoadError naming what is not supported.
    """
    return None
