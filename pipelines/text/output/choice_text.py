"""What one choice has said so far: text as it becomes final, with the log-probabilities of its tokens."""

from collections import deque
from typing import NamedTuple

from pipelines.messages.text import TokenLogprob
from pipelines.text.output.detokenizer import Detokenizer


class Piece(NamedTuple):
    """What comes out with one token."""

    text: str
    logprobs: list[TokenLogprob]


class Output:
    """Text and entries leave in the order of the tokens; an entry leaves with the first character of its token.

    So a stop string takes the entries of its own tokens with it, and the bytes of the entries are those of the text.
    """

    def __init__(self, stops: tuple[str, ...] = (), lead: bytes = b"") -> None:
        self._detokenizer = Detokenizer(stops, lead)
        self._entries: deque[tuple[int, TokenLogprob]] = deque()  # (where its token's text begins, entry)

    @property
    def stop(self) -> str | None:
        """The stop string that has been met."""
        return self._detokenizer.stop

    def push(self, data: bytes, entry: TokenLogprob | None, *, match: bool) -> Piece:
        """One token. With `match` off it takes no part in stop strings."""
        if entry is not None:
            self._entries.append((self._detokenizer.decoded, entry))
        text = self._detokenizer.feed(data, match=match)
        return Piece(text, self._take(everything=not self._detokenizer.holding))

    def finish(self, entry: TokenLogprob | None = None) -> Piece:
        """What was held back only because more could have come, and the entry of a last token that has no text.

        An incomplete character is dropped.
        """
        text = self._detokenizer.finish()
        if entry is not None:
            self._entries.append((self._detokenizer.decoded, entry))
        return Piece(text, self._take(everything=True))

    def _take(self, everything: bool) -> list[TokenLogprob]:
        taken: list[TokenLogprob] = []
        while self._entries and (everything or self._entries[0][0] < self._detokenizer.released):
            taken.append(self._entries.popleft()[1])
        return taken
