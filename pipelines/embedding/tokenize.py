"""Texts, text pairs and token ids to what an encoder reads: checked, counted, cut where the caller allows it."""

import re
import string
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tokenizers
from numpy.typing import NDArray

from models.embedder_config import EmbedderConfig
from models.errors import ModelLoadError
from pipelines.base import InvalidRequest
from pipelines.messages import Truncate

BATCH = 64  # texts handed to the tokenizer at once: it holds no lock of Python's meanwhile

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_SPACES = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Tokens:
    """One text, special tokens and, for encoders of a fixed length, padding included."""

    ids: NDArray[np.int32]  # [length]
    types: NDArray[np.int32] | None = None  # [length]: which text of a pair a token belongs to
    count: int = 0  # of real tokens
    truncated: bool = False


class Tokenizer:
    """A checkpoint's tokenizer for any number of threads: each has its own copy, since one raises when it is shared."""

    def __init__(self, folder: Path, config: EmbedderConfig) -> None:
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise ModelLoadError(f"{folder} has no tokenizer.json; save it with a fast tokenizer of transformers")
        self._serialized = file.read_text(encoding="utf-8")
        self._config = config
        self._local = threading.local()
        self._special = self._backend.num_special_tokens_to_add(False)
        self._special_pair = self._backend.num_special_tokens_to_add(True)

    @property
    def _backend(self) -> tokenizers.Tokenizer:
        found: tokenizers.Tokenizer | None = getattr(self._local, "backend", None)
        if found is None:
            found = tokenizers.Tokenizer.from_str(self._serialized)
            # Files often carry the padding and the truncation of whoever saved them.
            found.no_padding()
            found.no_truncation()
            self._local.backend = found
        return found

    def texts(self, texts: Sequence[str], truncate: Truncate, params: Sequence[str]) -> list[Tokens]:
        """`params` names the texts as the wire does. Raises InvalidRequest where one is over-long and not to be cut."""
        limit = self._config.max_tokens
        ready = [self._config.prompt + (_canonical(text) if self._config.canonical else text) for text in texts]
        found: list[Tokens] = []
        for start in range(0, len(ready), BATCH):
            for encoding in self._backend.encode_batch_fast(ready[start : start + BATCH]):
                at = len(found)
                truncated = len(encoding.ids) > limit
                if truncated:
                    if truncate == "none":
                        raise over_long(params[at], len(encoding.ids), limit)
                    encoding = self._cut(ready[at], truncate, limit)
                found.append(self._tokens(encoding.ids, truncated=truncated))
        return found

    def ids(self, ids: Sequence[int], truncate: Truncate, param: str) -> Tokens:
        """Token ids of this model, used as they are: no special tokens are added. Raises InvalidRequest."""
        vocabulary, limit = self._config.vocab_size, self._config.max_tokens
        for index, id in enumerate(ids):
            if not 0 <= id < vocabulary:
                raise InvalidRequest(
                    f"{param}[{index}] is {id}, but this model's token ids are 0 to {vocabulary - 1}: ids of another "
                    "tokenizer can't be used; send the text (LangChain: check_embedding_ctx_length=False)",
                    f"{param}[{index}]",
                )
        if len(ids) <= limit:
            return self._tokens(ids)
        if truncate == "none":
            raise over_long(param, len(ids), limit)
        return self._tokens(ids[:limit] if truncate == "end" else ids[-limit:], truncated=True)

    def pairs(self, query: str, documents: Sequence[str], truncate: Truncate, max_document: int | None) -> list[Tokens]:
        """The query with each document, for a cross-encoder; only documents are cut. Raises InvalidRequest."""
        limit, backend = self._config.max_tokens, self._backend
        room = limit - self._special_pair - len(backend.encode(query, add_special_tokens=False).ids)
        if room < 1:
            raise over_long("query", limit - room, limit - 1)
        room = min(room, max_document or room)
        found: list[Tokens] = []
        for start in range(0, len(documents), BATCH):
            batch = documents[start : start + BATCH]
            for encoding in backend.encode_batch_fast([(query, document) for document in batch]):
                at = len(found)
                second = sum(sequence == 1 for sequence in encoding.sequence_ids)
                truncated = second > room
                if truncated:
                    if truncate == "none":
                        raise over_long(f"documents[{at}]", second, room)
                    document = backend.encode(documents[at], add_special_tokens=False)
                    document.truncate(room, direction=_side(truncate))
                    encoding = backend.post_process(backend.encode(query, add_special_tokens=False), document)
                types = encoding.type_ids if self._config.token_types else None
                found.append(self._tokens(encoding.ids, types, truncated=truncated))
        return found

    def documents(self, documents: Sequence[str], truncate: Truncate, max_document: int | None) -> list[Tokens]:
        """Documents by themselves, cut to `max_document` tokens or what the model takes."""
        params = [f"documents[{index}]" for index in range(len(documents))]
        found = self.texts(documents, truncate, params)
        if max_document is None:
            return found
        limit = min(max_document + self._special, self._config.max_tokens)
        for index, tokens in enumerate(found):
            if tokens.count > limit:
                if truncate == "none":
                    raise over_long(params[index], tokens.count, limit)
                found[index] = self._tokens(self._cut(documents[index], truncate, limit).ids, truncated=True)
        return found

    def _cut(self, text: str, truncate: Truncate, limit: int) -> tokenizers.Encoding:
        """The text's own tokens are cut, before the special ones go around them."""
        encoding = self._backend.encode(text, add_special_tokens=False)
        encoding.truncate(max(0, limit - self._special), direction=_side(truncate))
        return self._backend.post_process(encoding)

    def _tokens(self, ids: Sequence[int], types: Sequence[int] | None = None, *, truncated: bool = False) -> Tokens:
        count = len(ids)
        array = np.asarray(ids, dtype=np.int32)
        if self._config.fixed_length:
            array = np.pad(array, (0, self._config.max_tokens - count), constant_values=self._config.pad_id)
        return Tokens(array, None if types is None else np.asarray(types, dtype=np.int32), count, truncated)


def over_long(param: str, count: int, limit: int) -> InvalidRequest:
    message = f"{param!r} has {count} tokens, but the model takes {limit}; shorten it, or set 'truncate'"
    return InvalidRequest(message, param, code="context_length_exceeded")


def _side(truncate: Truncate) -> str:
    """Which tokens the library drops: with "right", those at the end."""
    return "left" if truncate == "start" else "right"


def _canonical(text: str) -> str:
    """As SigLIP's authors prepare texts (big_vision, `prompt_engineering.py`)."""
    return _SPACES.sub(" ", text.lower().translate(_PUNCTUATION)).strip()
