"""The images of one prompt: where their rows stand in it, and what the model is given there."""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.vision.image import EncodedImage, PreparedImage
from models.vision.vision import PlacedImage


class ImageKey(NamedTuple):
    """Under which an encoded image can be found again."""

    salt: str  # of the tenant: images of two salts never match
    identity: bytes


@dataclass(frozen=True, slots=True)
class Run:
    """The embeddings of places `begin … end - 1` of the prompt are an image's rows, from the row `first` on."""

    begin: int
    end: int
    key: ImageKey
    first: int


@dataclass(frozen=True, slots=True)
class Rows:
    """A part of a run, in a chunk of the prompt: `length` rows of the image, from the row `first` on."""

    offset: int  # in the chunk
    length: int
    image: EncodedImage
    first: int

    @property
    def embeds(self) -> NDArray[np.float32]:
        """[length, hidden]"""
        return self.image.rows[self.first : self.first + self.length]

    @property
    def deepstack(self) -> NDArray[np.float32] | None:
        """[layers, length, hidden]"""
        stacked = self.image.deepstack
        return None if stacked is None else stacked[:, self.first : self.first + self.length]


class PromptImages:
    """Shared by the choices of the prompt, which keep the encoded images for as long as they may have to read them:
    to their end, since one that is put back for others computes its prompt again."""

    def __init__(
        self,
        placed: Sequence[PlacedImage],
        salt: str,
        *,
        bidirectional: bool,
        positions: NDArray[np.int64] | None = None,
        delta: int = 0,
        seconds: float = 0.0,
    ) -> None:
        """`placed`: in the order of the prompt. `positions`: [axes, length of the prompt] for ropes with several axes,
        `delta` what takes a place behind the prompt to its position. `seconds`: that preparing them took."""
        self.tokens = sum(len(each.image.tokens) for each in placed)
        self._places = [(each.start, each.start + len(each.image.tokens), each.image.identity) for each in placed]
        self.seconds = seconds
        self.delta = delta
        self._positions = positions
        self._runs = [run for each in placed for run in _runs(each, _key(each.image, salt))]
        # Places of which a chunk has all or none, ascending.
        self.spans = tuple((run.begin, run.end) for run in self._runs) if bidirectional else ()
        # Each image once, however often the prompt shows it.
        self.missing: dict[ImageKey, PreparedImage] = {_key(each.image, salt): each.image for each in placed}
        self.keys = tuple(self.missing)
        self._encoded: dict[ImageKey, EncodedImage] = {}

    def put(self, key: ImageKey, encoded: EncodedImage) -> None:
        """One that is missing no more. What it was made of is dropped: it is as large."""
        del self.missing[key]
        self._encoded[key] = encoded

    def rows(self, start: int, length: int) -> Iterator[Rows]:
        """Of the images that are seen in a chunk of the prompt."""
        for run in self._runs:
            begin, end = max(run.begin, start), min(run.end, start + length)
            if begin < end:
                yield Rows(begin - start, end - begin, self._encoded[run.key], run.first + begin - run.begin)

    def block_extras(self, block_size: int) -> Mapping[int, bytes]:
        """By number of a prompt's block: which images have tokens in it, and which of their tokens those are."""
        extras: dict[int, bytes] = {}
        for start, end, identity in self._places:
            for block in range(start // block_size, -(-end // block_size)):
                # Counted from the image's first token: less than 0 where that stands in the block.
                offset = struct.pack("<q", block * block_size - start)
                extras[block] = extras.get(block, b"") + identity + offset
        return extras

    def border(self, place: int, tile: int) -> int:
        """`place`, or the last border of tiles before it that is in no span."""
        for begin, end in reversed(self.spans):
            if begin < place < end:
                place = begin // tile * tile
        return place

    def chunk_end(self, start: int, end: int, tile: int) -> int:
        """Where a chunk from `start` on ends, that has no part of a span: before the one that it would cut at `end`, or
        behind it, on a border of tiles, where it begins with that."""
        before = self.border(end, tile)
        if before > start:
            return before
        for span in self.spans:
            if span[0] < end < span[1]:
                end = -(-span[1] // tile) * tile
        return end

    def positions(self, start: int, length: int) -> NDArray[np.int64]:
        """[axes, length] within the prompt, [length] where the rope has one axis and behind the prompt, where all axes
        are equal."""
        if self._positions is None or start >= self._positions.shape[1]:
            return np.arange(start, start + length) + self.delta
        return self._positions[:, start : start + length]


def _key(image: PreparedImage, salt: str) -> ImageKey:
    return ImageKey(salt, image.identity)


def _runs(placed: PlacedImage, key: ImageKey) -> Iterator[Run]:
    rows = placed.image.rows
    first = 0
    for run in np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1):
        if len(run):
            begin = placed.start + int(run[0])
            yield Run(begin, begin + len(run), key, first)
            first += len(run)
