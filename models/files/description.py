"""JSON files that describe a model."""

import json
from pathlib import Path
from typing import Any

from models.errors import ModelLoadError

MOST_BYTES = 64 << 20  # of a description: an index of many thousand tensors has a few million


def read_json(path: Path) -> dict[str, Any] | None:
    """The table in a file; None: there is no such file. A number without a fraction is an int, however it is spelled:
    to JSON 131072.0 is 131072. Raises ModelLoadError."""
    if not path.is_file():
        return None
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ModelLoadError(f"{path} has more than {MOST_BYTES >> 20} MiB: it describes no model")
        found = json.loads(path.read_bytes(), parse_float=_number)
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise ModelLoadError(f"{path} is not valid JSON of a model: it holds no table")
    return found


def _number(spelled: str) -> float:
    number = float(spelled)
    return int(number) if number.is_integer() else number
