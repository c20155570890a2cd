"""Proposals without a model: what followed the last few tokens when they came before."""

from collections.abc import Sequence as Rows

from metrics.metric import GaugeSeries
from pipelines.text.sequence import Sequence
from pipelines.text.speculative import Want

SIZES = (4, 3, 2)  # tokens of the runs that are looked up, the longest first


class SuffixIndex:
    """Where each short run of a sequence's tokens was last followed by something: prompt lookup decoding
    (https://github.com/apoorvumang/prompt-lookup-decoding)."""

    def __init__(self) -> None:
        self._follows: tuple[dict[tuple[int, ...], int], ...] = tuple({} for _ in SIZES)
        self._indexed = 0  # tokens whose place as a follower is in the index

    def propose(self, tokens: Rows[int], most: int) -> list[int]:
        """Up to `most` tokens that followed the longest run that `tokens` ends with. `tokens` only ever grows."""
        for end in range(max(1, self._indexed), len(tokens)):
            for size, follows in zip(SIZES, self._follows, strict=True):
                if size <= end:
                    follows[tuple(tokens[end - size : end])] = end
        self._indexed = len(tokens)
        for size, follows in zip(SIZES, self._follows, strict=True):
            if size <= len(tokens) and (place := follows.get(tuple(tokens[-size:]))) is not None:
                return list(tokens[place : place + most])
        return []


class NgramProposer:
    """Implements `pipelines.text.speculative.Proposer`."""

    free = True

    def __init__(self) -> None:
        self._indices: dict[Sequence, SuffixIndex] = {}

    def seconds(self, sequences: int) -> float:
        return 0.0

    def propose(self, wants: Rows[Want]) -> list[list[int]]:
        return [self._index(want.sequence).propose(want.sequence.tokens, want.length) for want in wants]

    def _index(self, sequence: Sequence) -> SuffixIndex:
        found = self._indices.get(sequence)
        if found is None:
            found = self._indices[sequence] = SuffixIndex()
        return found

    def release(self, sequence: Sequence) -> None:
        self._indices.pop(sequence, None)

    def gauges(self) -> dict[GaugeSeries, float]:
        return {}

    def check(self) -> None:
        if self._indices:
            raise RuntimeError(f"{len(self._indices)} sequences that have ended still have an index")
