"""A draft model for the embedded one: its own first layers."""

import struct
from pathlib import Path

_UINT32 = 4  # GGUF's number for the type of a metadata value


def truncate(source: Path, target: Path, layers: int) -> Path:
    """A copy of a GGUF file of Llama's kind that says it has only so many layers; the rest is not read."""
    data = bytearray(source.read_bytes())
    key = b"llama.block_count"
    place = data.index(key) + len(key)
    kind, found = struct.unpack_from("<II", data, place)
    assert kind == _UINT32
    assert layers <= found
    struct.pack_into("<I", data, place + 4, layers)
    target.write_bytes(data)
    return target
