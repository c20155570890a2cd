"""Small GGUF files, written by the gguf package."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from models.errors import SourceError
from models.files.source import resolve

SMOLLM2 = "embedded:smollm2-135m-instruct"


@pytest.fixture(scope="session")
def smollm2() -> Path:
    try:
        return resolve(SMOLLM2)
    except SourceError as error:
        pytest.skip(str(error))


def write_gguf(
    path: Path,
    architecture: str = "llama",
    *,
    metadata: dict[str, Any] | None = None,
    tensors: dict[str, np.ndarray] | None = None,
    quantised: dict[str, tuple[np.ndarray, gguf.GGMLQuantizationType]] | None = None,
    blocks: dict[str, tuple[np.ndarray, gguf.GGMLQuantizationType]] | None = None,
) -> Path:
    """`tensors` in their own type; `quantised`: float32 values and the type to store them in; `blocks`: stored so."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (metadata or {}).items():
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case str():
                writer.add_string(key, value)
            case _:
                writer.add_array(key, value)
    for name, tensor in (tensors or {}).items():
        writer.add_tensor(name, tensor)
    for name, (values, kind) in (quantised or {}).items():
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    for name, (stored, kind) in (blocks or {}).items():
        writer.add_tensor(name, stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
