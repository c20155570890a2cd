"""What single tokens look like to the outside."""

from models.tokenizer.tokenizer import Tokenizer
from pipelines.messages.text import TokenLogprob, TopLogprob
from pipelines.text.sample.sampler import RowLogprobs


class Vocabulary:
    """Bytes and text of every id that the model has a logit for, ids that the tokenizer has no token for included."""

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        self.size = size  # of the model: its embedding is often padded
        self._bytes = [tokenizer.token_bytes(id) for id in range(min(size, tokenizer.vocab_size))]
        self._bytes.extend(b"" for _ in range(size - len(self._bytes)))
        self._names: dict[int, str] = {}
        for name in tokenizer.special_tokens.values():
            match tokenizer.encode(name, add_special=False):
                case [id]:
                    self._names[id] = name

    def bytes_of(self, id: int) -> bytes:
        """b"" for special tokens: they are no part of a text."""
        return self._bytes[id]

    def text_of(self, id: int) -> str:
        """A special token's name; else its bytes as text, U+FFFD where they are none of their own."""
        return self._names.get(id) or self._bytes[id].decode("utf-8", errors="replace")

    def logprob(self, id: int, row: RowLogprobs | None) -> TokenLogprob:
        """The entry of a token; without a row, of the first token of a prompt."""
        if row is None:
            return TokenLogprob(id, self.text_of(id), None, self._bytes[id])
        top = [TopLogprob(other, self.text_of(other), value, self._bytes[other]) for other, value in row.top]
        return TokenLogprob(id, self.text_of(id), row.token, self._bytes[id], top)
