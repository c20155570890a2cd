"""Text to token ids and back."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import tokenizers


class Tokenizer:
    """One tokenizer; not to be shared by threads: each takes a `clone`."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        eos_ids: frozenset[int],
        bos_id: int | None,
        chat_template: str | None,
        special_tokens: Mapping[str, str],
        token_table: Sequence[bytes],
    ) -> None:
        self._backend = backend
        self._table = token_table
        self.vocab_size = len(token_table)
        self.eos_ids = eos_ids  # of the tokenizer; a generation config may name more
        self.bos_id = bos_id
        self.special_ids = frozenset(id for id, token in backend.get_added_tokens_decoder().items() if token.special)
        self.chat_template = chat_template
        self.special_tokens = dict(special_tokens)  # bos_token, eos_token, … as chat templates name them

    def encode(self, text: str, *, add_special: bool) -> list[int]:
        """`add_special`: put in what the model's own post-processor adds (a BOS). Special tokens spelled in `text` become themselves."""
        return self._backend.encode(text, add_special_tokens=add_special).ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens left out."""
        return self._backend.decode(list(ids), skip_special_tokens=True)

    def token_bytes(self, id: int) -> bytes:
        """The raw bytes that a token stands for; b"" for special tokens."""
        return self._table[id]

    def clone(self) -> "Tokenizer":
        """The same tokenizer with its own state, for another thread."""
        return Tokenizer(
            tokenizers.Tokenizer.from_str(self._backend.to_str()),
            eos_ids=self.eos_ids,
            bos_id=self.bos_id,
            chat_template=self.chat_template,
            special_tokens=self.special_tokens,
            token_table=self._table,
        )


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a model folder (`tokenizer.json`) or of a GGUF file. Raises ModelLoadError."""
    raise NotImplementedError
