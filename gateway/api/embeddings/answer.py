"""`POST /v1/embeddings`: the answer.

Rows are written as they come, a step's worth at a time: the event loop is never held up by a whole answer, and the last
step of a large request is followed by no more than a join.
"""

from base64 import b64encode
from typing import Literal

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gateway.api.embeddings.request import EncodingFormat
from metrics.timeline import Phases
from pipelines.messages.base import Said
from pipelines.messages.embedding import Vectors
from pipelines.messages.frames import Done

DIGITS = 9  # significant ones: they tell any float32 from its neighbours


class EmbeddingUsage(Struct, frozen=True):
    prompt_tokens: int
    total_tokens: int


class EmbeddingItem(Struct, frozen=True):
    index: int
    embedding: list[float] | str  # numbers, or the base64 of float32 in little-endian order
    object: Literal["embedding"] = "embedding"


class EmbeddingList(Struct, frozen=True):
    """What EmbeddingsAnswer writes."""

    data: list[EmbeddingItem]
    model: str
    usage: EmbeddingUsage
    object: Literal["list"] = "list"


class EmbeddingsAnswer:
    """One body."""

    streamed = False

    def __init__(self, model: str, inputs: int, encoding: EncodingFormat) -> None:
        self._model = model
        self._encoding = encoding
        self._items: list[bytes] = [b""] * inputs

    def render(self, event: Said) -> bytes:
        match event:
            case Vectors(indices=indices, data=data):
                rows = (_base64_rows if self._encoding == "base64" else _float_rows)(data, len(indices))
                for index, row in zip(indices, rows, strict=True):
                    self._items[index] = b'{"object":"embedding","index":%d,"embedding":%b}' % (index, row)
        return b""

    def finish(self, done: Done, spent: Phases) -> bytes:
        tokens = done.usage.prompt_tokens
        return b'{"object":"list","data":[%b],"model":%b,"usage":%b}' % (
            b",".join(self._items),
            _encode(self._model),
            _encode(EmbeddingUsage(tokens, tokens)),
        )


_encode = msgspec.json.Encoder().encode


def _float_rows(data: bytes, rows: int) -> list[bytes]:
    return [_encode(row) for row in decimals(np.frombuffer(data, "<f4")).reshape(rows, -1).tolist()]


def decimals(numbers: NDArray[np.float32]) -> NDArray[np.float64]:
    """The same numbers as decimals of so few digits that they are read back as the same float32, and no shorter: JSON
    says what base64 does."""
    wide = numbers.astype(np.float64)
    sizes = np.abs(wide, where=wide != 0, out=np.ones_like(wide))
    scale = 10.0 ** (DIGITS - 1 - np.floor(np.log10(sizes)))
    return (wide * scale).round() / scale


def _base64_rows(data: bytes, rows: int) -> list[bytes]:
    size = len(data) // rows
    return [b'"%b"' % b64encode(data[start : start + size]) for start in range(0, len(data), size)]
