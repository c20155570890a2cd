"""Encoded images, kept for the next request that shows them."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from models.vision.image import EncodedImage
from pipelines.text.vision.prompt_images import ImageKey


@dataclass(slots=True)
class _Entry:
    nbytes: int  # expected, until it is there
    references: int = 0
    image: EncodedImage | None = None


class EncoderCache:
    """Counts the requests that need an image. Of those that none needs the least recently used go first.

    Claimed and kept images together have at most `capacity` bytes, as far as their sizes are known before they are
    encoded. A request that needs more than that by itself has its claim when nobody else has one.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[ImageKey, _Entry] = OrderedDict()  # the longest unused first
        self.nbytes = 0
        self._claimed = 0  # bytes of those that are referenced
        self.queries = 0
        self.hits = 0

    def claim(self, expected: Mapping[ImageKey, int]) -> bool:
        """All of these, with their expected bytes, or none where there is no room for them now. What is claimed stays
        until it is released."""
        new = sum(self._unclaimed(key, nbytes) for key, nbytes in expected.items())
        if self._claimed and self._claimed + new > self._capacity:
            return False
        for key, nbytes in expected.items():
            self.queries += 1
            self.hits += key in self._entries
            entry = self._entries.setdefault(key, _Entry(0))
            if entry.references == 0:
                self._claimed += entry.nbytes
            if entry.nbytes == 0:
                self._resize(entry, nbytes)
            entry.references += 1
        self._trim()
        return True

    def get(self, key: ImageKey) -> EncodedImage | None:
        """One that is claimed; None: it is to be encoded yet."""
        return self._entries[key].image

    def put(self, key: ImageKey, image: EncodedImage) -> None:
        """For whoever has claimed it."""
        entry = self._entries[key]
        entry.image = image
        self._resize(entry, image.nbytes)
        self._trim()

    def release(self, keys: Iterable[ImageKey]) -> None:
        for key in keys:
            entry = self._entries[key]
            entry.references -= 1
            if entry.references == 0:
                self._claimed -= entry.nbytes
                if entry.image is None:
                    self._drop(key)
                else:
                    self._entries.move_to_end(key)
        self._trim()

    def check(self) -> None:
        """Verify the invariants, when no request is left. Raises RuntimeError."""
        if any(entry.references or entry.image is None for entry in self._entries.values()) or self._claimed:
            raise RuntimeError("the encoder cache has claims of requests that have ended")
        if self.nbytes != sum(entry.nbytes for entry in self._entries.values()) or self.nbytes > self._capacity:
            raise RuntimeError(f"the encoder cache counts {self.nbytes} bytes, of {self._capacity}")

    def _unclaimed(self, key: ImageKey, nbytes: int) -> int:
        """Bytes that a claim of it adds to those that are claimed."""
        entry = self._entries.get(key)
        if entry is None:
            return nbytes
        return 0 if entry.references else entry.nbytes

    def _resize(self, claimed: _Entry, nbytes: int) -> None:
        self.nbytes += nbytes - claimed.nbytes
        self._claimed += nbytes - claimed.nbytes
        claimed.nbytes = nbytes

    def _trim(self) -> None:
        """Make room, as far as what is claimed lets it."""
        if self.nbytes <= self._capacity:
            return
        for key in [key for key, entry in self._entries.items() if not entry.references]:
            self._drop(key)
            if self.nbytes <= self._capacity:
                break

    def _drop(self, key: ImageKey) -> None:
        self.nbytes -= self._entries.pop(key).nbytes
