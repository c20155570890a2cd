"""Local agreement: what two runs over a growing window both say is taken for certain.

Macháček, Dabre, Bojar, "Turning Whisper into Real-Time Transcription System", https://arxiv.org/abs/2307.14743 (LA-2).
"""

from collections.abc import Sequence

Token = int
SpokenWord = tuple[str, tuple[Token, ...]]  # as written, and its tokens

HELD_BACK = 1  # words at the end of what agrees: their sound may have been cut off


class Agreement:
    """The words of one growing window. Committed words never change and only grow in number."""

    def __init__(self) -> None:
        self.committed: list[SpokenWord] = []
        self.until = 0  # the audio's position that no committed word is later than
        self._previous: list[SpokenWord] = []
        self._seen = 0  # the position that the previous run saw

    @property
    def tokens(self) -> tuple[Token, ...]:
        """Those of the committed words: a run is to begin with them."""
        return tuple(token for _, tokens in self.committed for token in tokens)

    def update(
        self, words: Sequence[SpokenWord], seen: int, *, commit: bool = True
    ) -> tuple[list[SpokenWord], list[SpokenWord]]:
        """Take in a run over the audio up to `seen`: its words after the committed ones.

        Returns (newly committed, the rest of them). Without `commit` the run is only remembered.
        """
        agreed = 0
        for now, before in zip(words, self._previous, strict=False):
            if plain(now[0]) != plain(before[0]):
                break
            agreed += 1
        agreed = max(0, min(agreed, len(words) - HELD_BACK, len(self._previous) - HELD_BACK))
        if not commit:
            agreed = 0
        fresh, rest = list(words[:agreed]), list(words[agreed:])
        if fresh:
            self.committed += fresh
            self.until = self._seen
        self._previous, self._seen = rest, seen
        return fresh, rest


def plain(word: str) -> str:
    """A word, or several, without what a run may see differently when it knows how the sentence goes on."""
    return "".join(filter(str.isalnum, word)).lower() or word.strip()
