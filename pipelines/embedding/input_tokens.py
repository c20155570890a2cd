"""Texts, text pairs and token ids to what an encoder reads: checked, counted, cut where the caller allows it."""

import re
import string
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import tokenizers
from numpy.typing import NDArray

from models.embedder.embedder_config import EmbedderConfig
from models.errors import ModelLoadError
from models.tokenizer.borders import Borders
from pipelines.base import InvalidRequest
from pipelines.messages.embedding import Truncate

BATCH = 64  # texts handed to the tokenizer at once: it holds no lock of Python's meanwhile

UNCUT = "a query is never cut: shorten it"

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_SPACES = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Tokens:
    """One text, special tokens and, for encoders of a fixed length, padding included."""

    ids: NDArray[np.int32]  # [length]
    types: NDArray[np.int32] | None = None  # [length]: which text of a pair a token belongs to
    count: int = 0  # of real tokens
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class _Part:
    """What has been read of a text."""

    part: str
    whole: bool

    def count(self, tokens: int, limit: int) -> str:
        """The text's tokens, of which `tokens` were read, for people."""
        return str(tokens) if self.whole else f"more than {limit}"


def cutting(param: str) -> str:
    """What to do about a text that may be cut. `param`: what the caller calls the field that says so."""
    return f"shorten it, or set {param!r}"


@dataclass(frozen=True, slots=True)
class Limit:
    """How long a text may be, and how that is put where it is longer and not to be cut."""

    tokens: int
    words: str = "the model takes"
    advice: str = cutting("truncate")


class InputTokenizer:
    """A checkpoint's tokenizer for any number of threads: each has its own copy, since one raises when it is shared."""

    def __init__(self, folder: Path, config: EmbedderConfig) -> None:
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise ModelLoadError(f"{folder} has no tokenizer.json; save it with a fast tokenizer of transformers")
        self._serialized = file.read_text(encoding="utf-8")
        self._config = config
        self._local = threading.local()
        self.special = self._backend.num_special_tokens_to_add(False)  # tokens around a text
        self._special_pair = self._backend.num_special_tokens_to_add(True)

    @property
    def _borders(self) -> Borders:
        found: Borders | None = getattr(self._local, "borders", None)
        if found is None:
            found = self._local.borders = Borders(self._backend)
        return found

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

    def texts(
        self,
        texts: Sequence[str],
        truncate: Truncate,
        params: Sequence[str],
        *,
        prompt: str | None = None,
        limit: Limit | None = None,
    ) -> list[Tokens]:
        """`params` names the texts as the wire does. Raises InvalidRequest where one is over-long and not to be cut.

        `prompt`: what comes before each; None: the model's own. `limit` None: what the model takes.
        """
        limit = limit or Limit(self._config.max_tokens)
        prompt = self._config.prompt if prompt is None else prompt
        if self._config.canonical:
            texts = [_canonical(text) for text in texts]
        found: list[Tokens] = []
        for start in range(0, len(texts), BATCH):
            for cut, encoding in self._read(texts[start : start + BATCH], limit.tokens, truncate, prompt=prompt):
                truncated = len(encoding.ids) > limit.tokens
                if truncated:
                    if truncate == "none":
                        raise over_long(params[len(found)], cut.count(len(encoding.ids), limit.tokens), limit)
                    encoding = self._cut(prompt, cut.part, truncate, limit.tokens)
                found.append(self._tokens(encoding.ids, truncated=truncated))
        return found

    def ids(self, ids: Sequence[int], truncate: Truncate, param: str, *, limit: Limit | None = None) -> Tokens:
        """Token ids of this model, used as they are: no special tokens are added. Raises InvalidRequest."""
        vocabulary, limit = self._config.vocab_size, limit or Limit(self._config.max_tokens)
        for index, id in enumerate(ids):
            if not 0 <= id < vocabulary:
                raise InvalidRequest(
                    f"{param}[{index}] is {id}, but this model's token ids are 0 to {vocabulary - 1}: ids of another "
                    "tokenizer can't be used; send the text (LangChain: check_embedding_ctx_length=False)",
                    f"{param}[{index}]",
                )
        if len(ids) <= limit.tokens:
            return self._tokens(ids)
        if truncate == "none":
            raise over_long(param, len(ids), limit)
        return self._tokens(ids[: limit.tokens] if truncate == "end" else ids[-limit.tokens :], truncated=True)

    def pairs(
        self,
        query: str,
        documents: Sequence[str],
        truncate: Truncate,
        params: Sequence[str],
        max_document: int | None = None,
        *,
        advice: str = cutting("truncate"),
    ) -> list[Tokens]:
        """The query with each document, for a cross-encoder; only documents are cut. Raises InvalidRequest."""
        backend = self._backend
        most = self._config.max_tokens - self._special_pair  # tokens of query and document
        ((cut, asked),) = self._read([query], most, "none", special=False)
        if len(asked.ids) >= most:
            count = cut.count(len(asked.ids), most)
            raise over_long("query", count, Limit(most - 1, "beside a document the model takes", UNCUT))
        room = min(most - len(asked.ids), max_document or most)
        found: list[Tokens] = []
        for start in range(0, len(documents), BATCH):
            read = self._read(documents[start : start + BATCH], room, truncate, special=False)
            for cut, document in read:
                truncated = len(document.ids) > room
                if truncated:
                    if truncate == "none":
                        count = cut.count(len(document.ids), room)
                        raise over_long(params[len(found)], count, Limit(room, "beside the query it may have", advice))
                    document.truncate(room, direction=_side(truncate))
                encoding = backend.post_process(asked, document)
                types = encoding.type_ids if self._config.token_types else None
                found.append(self._tokens(encoding.ids, types, truncated=truncated))
        return found

    def documents(
        self,
        documents: Sequence[str],
        truncate: Truncate,
        params: Sequence[str],
        max_document: int | None = None,
        *,
        prompt: str | None = None,
        advice: str = cutting("truncate"),
    ) -> list[Tokens]:
        """Documents by themselves, cut to `max_document` tokens of their own or what the model takes."""
        limit = Limit(self._config.max_tokens, advice=advice)
        if max_document is not None:
            before = self._encode(self._config.prompt if prompt is None else prompt)
            own = max_document + self.special + len(before.ids)
            limit = min(
                limit, Limit(own, "with 'max_tokens_per_doc' it may have", advice), key=lambda each: each.tokens
            )
        return self.texts(documents, truncate, params, prompt=prompt, limit=limit)

    def _read(
        self, texts: Sequence[str], tokens: int, truncate: Truncate, *, prompt: str = "", special: bool = True
    ) -> "list[tuple[_Part, tokenizers.Encoding]]":
        """Of each text as much as has more than `tokens` tokens, which are those of the whole, or all of it."""
        side: Literal["start", "end"] = "end" if truncate == "start" else "start"
        growing = [self._borders.parts(text, tokens, side) for text in texts]
        parts = [next(each) for each in growing]
        found: list[tuple[_Part, tokenizers.Encoding]] = []
        read = self._backend.encode_batch_fast([prompt + part for part in parts], add_special_tokens=special)
        for text, part, more, encoding in zip(texts, parts, growing, read, strict=True):
            while len(encoding.ids) <= tokens and len(part) < len(text):
                part = next(more)
                (encoding,) = self._backend.encode_batch_fast([prompt + part], add_special_tokens=special)
            found.append((_Part(part, len(part) == len(text)), encoding))
        return found

    def _encode(self, text: str) -> tokenizers.Encoding:
        """The text's own tokens. In a batch of one: `encode` keeps the interpreter lock to its end."""
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=False)
        return encoding

    def _cut(self, prompt: str, text: str, truncate: Truncate, limit: int) -> tokenizers.Encoding:
        """The text's own tokens are cut, before the special ones go around them; its prompt is kept."""
        backend, room = self._backend, max(0, limit - self.special)
        if truncate == "start" and prompt:
            before = self._encode(prompt)
            encoding = self._encode(text)
            before.truncate(room)
            encoding.truncate(room - len(before.ids), direction=_side(truncate))
            return backend.post_process(tokenizers.Encoding.merge([before, encoding], growing_offsets=True))
        encoding = self._encode(prompt + text)
        encoding.truncate(room, direction=_side(truncate))
        return backend.post_process(encoding)

    def _tokens(self, ids: Sequence[int], types: Sequence[int] | None = None, *, truncated: bool = False) -> Tokens:
        count = len(ids)
        array = np.asarray(ids, dtype=np.int32)
        if self._config.fixed_length:
            array = np.pad(array, (0, self._config.max_tokens - count), constant_values=self._config.pad_id)
        return Tokens(array, None if types is None else np.asarray(types, dtype=np.int32), count, truncated)


def over_long(param: str, count: int | str, limit: Limit) -> InvalidRequest:
    message = f"{param!r} has {count} tokens, but {limit.words} {limit.tokens}; {limit.advice}"
    return InvalidRequest(message, param, code="context_length_exceeded")


def _side(truncate: Truncate) -> str:
    """Which tokens the library drops: with "right", those at the end."""
    return "left" if truncate == "start" else "right"


def _canonical(text: str) -> str:
    """As SigLIP's authors prepare texts (big_vision, `prompt_engineering.py`)."""
    return _SPACES.sub(" ", text.lower().translate(_PUNCTUATION)).strip()
