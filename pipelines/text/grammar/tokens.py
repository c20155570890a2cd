"""A model's tokens, as llguidance reads them."""

from collections.abc import Set as AbstractSet
from threading import Lock

from llguidance import LLTokenizer, TokenizerWrapper

from models.tokenizer.tokenizer import Tokenizer

SENTINEL = "\x02"  # encoded before a text, where a tokenizer puts a space before the first word


def read_tokens(tokenizer: Tokenizer, size: int, eos_ids: AbstractSet[int]) -> LLTokenizer:
    """Of a model with `size` rows of logits. Where it has no EOS, the id `size` stands for the end of a text."""
    ends = sorted(id for id in eos_ids if id < size) or [size]
    return _Source(tokenizer, max(size, ends[-1] + 1), ends).read()


class _Source:
    """What the library asks for: each token's bytes, and how the model's tokenizer cuts a text."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, size: int, ends: list[int]) -> None:
        known = min(size, tokenizer.vocab_size)
        special = {id for id in tokenizer.special_ids if id < known} | set(ends)
        names = {id: name for name, id in tokenizer.token_ids().items() if id in special}
        self.tokens = [tokenizer.token_bytes(id) for id in range(known)] + [b""] * (size - known)
        for id in special:
            self.tokens[id] = names.get(id, f"<end {id}>").encode()
        self.special_token_ids = sorted(special)
        self._special = frozenset(special)
        self.eos_token_id = ends[0]
        self._ends = ends
        self._size = size
        self._tokenizer = tokenizer.clone()  # of its own: it is asked for on any thread
        self._lock = Lock()
        self._reader: LLTokenizer | None = None

    def read(self) -> LLTokenizer:
        self._reader = LLTokenizer(TokenizerWrapper(self), n_vocab=self._size, eos_token=self._ends)
        return self._reader

    def __call__(self, text: str) -> list[int]:
        """Ids whose bytes are the text's: as the tokenizer cuts it, else the longest tokens from the left."""
        if not isinstance(text, str):
            raise TypeError("texts alone are cut")  # the library tries whether bytes are
        data = text.encode()
        with self._lock:
            ids = self._tokenizer.encode(text, add_special=False)
            if self._spelled(ids) == data:
                return ids
            ids = self._tokenizer.encode(SENTINEL + text, add_special=False)
        for cut in (1, 2):  # the space may be a token of its own
            before = self._spelled(ids[:cut]) or b""
            if before.removeprefix(b" ") == SENTINEL.encode() and self._spelled(ids[cut:]) == data:
                return ids[cut:]
        assert self._reader is not None
        return self._reader.greedy_tokenize(text)

    def _spelled(self, ids: list[int]) -> bytes | None:
        """None where a text is more than ordinary tokens that the model has."""
        if any(id >= self._size or id in self._special for id in ids):
            return None
        return b"".join(self.tokens[id] for id in ids)
