"""Who holds which block of the KV cache."""

import re
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from itertools import chain

from pipelines.text.cache.prefix import PrefixKey

_FREE, _CACHED, _USED = 0, 1, 2  # a block's state: empty | unreferenced, but a prefix that may be hit | referenced
_FREE_RUN = re.compile(rb"\x00+")


class BlockManager:
    """Reference-counted blocks, prefixes among them that can be found by key, least recently used ones reused first.

    Invariants (`check` verifies them):
    - a block is referenced as often as it stands in a live block table;
    - a key names one block, and that block carries the key; a referenced or cached block keeps its content;
    - the unreferenced blocks that carry a key are the ones in the LRU order; all other unreferenced ones are free.

    A table is laid out as one run of consecutive blocks where possible: the attention then reads keys and values
    through a view where it would else have to gather them, at every layer of every step.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._references = [0] * num_blocks
        self._states = bytearray(num_blocks)
        self._keys: list[PrefixKey | None] = [None] * num_blocks
        self._by_key: dict[PrefixKey, int] = {}
        self._unreferenced: OrderedDict[int, None] = OrderedDict()  # cached blocks, the longest unused first
        self._num_free = num_blocks

    @property
    def num_available(self) -> int:
        """Blocks that can be had: free, or cached and unreferenced."""
        return self._num_free + len(self._unreferenced)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_available

    @property
    def num_cached(self) -> int:
        """Blocks that no table holds, kept for prefix hits."""
        return len(self._unreferenced)

    def blocks_for(self, positions: int) -> int:
        """Blocks that hold so many positions."""
        return -(-positions // self.block_size)

    # --- a sequence's table -------------------------------------------------------------------------------------------

    def match(self, keys: Sequence[PrefixKey]) -> list[int]:
        """The longest run of `keys`, from the first on, whose blocks are in the cache. Takes no reference."""
        blocks: list[int] = []
        for key in keys:
            block = self._by_key.get(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def can_allocate(self, count: int, prefix: Sequence[int] = (), released: Iterable[Sequence[int]] = ()) -> bool:
        """Whether `count` blocks can be had beside the matched `prefix`, once the tables `released` are given back."""
        references = Counter(chain.from_iterable(released))
        freed = {block for block, number in references.items() if number == self._references[block]}
        held = sum(self._states[block] == _CACHED for block in prefix)
        return count <= self.num_available - held + len(freed.difference(prefix))

    def allocate(self, count: int, prefix: Sequence[int] = (), growth: int = 0) -> list[int]:
        """A table: the matched `prefix`, then `count` blocks of its own. Only after `can_allocate`.

        `growth`: blocks that the sequence may come to need, to be left free behind it where there is room.
        """
        for block in prefix:
            self._reference(block)
        self._evict(count - self._num_free)
        start = self._find_run(count, growth, prefix[-1] + 1 if prefix else None)
        if start is None and self._unreferenced:
            # Blocks that were used together lie together and are evicted together: a few more make a run.
            self._evict(2 * count)
            start = self._find_run(count, growth, None)
        fresh = self._scattered(count) if start is None else range(start, start + count)
        for block in fresh:
            self._take(block)
        return [*prefix, *fresh]

    def can_append(self, count: int) -> bool:
        return count <= self.num_available

    def append(self, table: list[int], count: int) -> None:
        """Grow a table. Only after `can_append`."""
        for _ in range(count):
            block = table[-1] + 1 if table else self.num_blocks
            if block >= self.num_blocks or self._states[block] != _FREE:
                self._evict(1 - self._num_free)
                start = self._find_run(1, self.num_blocks, None)
                assert start is not None
                block = start
            self._take(block)
            table.append(block)

    def register(self, table: Sequence[int], keys: Sequence[PrefixKey], start: int, end: int) -> None:
        """Blocks `start … end - 1` of `table` now hold what their keys say; others may reuse them."""
        for number in range(start, end):
            block, key = table[number], keys[number]
            if self._keys[block] is None and key not in self._by_key:
                self._keys[block] = key
                self._by_key[key] = block

    def release(self, table: list[int]) -> None:
        """Give a table back, and empty it. What others can find stays cached, its end the first to be reused."""
        for block in reversed(table):
            self._references[block] -= 1
            if self._references[block]:
                continue
            if self._keys[block] is None:
                self._states[block] = _FREE
                self._num_free += 1
            else:
                self._states[block] = _CACHED
                self._unreferenced[block] = None
        table.clear()

    # --- single blocks ------------------------------------------------------------------------------------------------

    def _take(self, block: int) -> None:
        self._references[block] = 1
        self._states[block] = _USED
        self._num_free -= 1

    def _reference(self, block: int) -> None:
        if self._states[block] == _CACHED:
            del self._unreferenced[block]
            self._states[block] = _USED
        self._references[block] += 1

    def _evict(self, count: int) -> None:
        """Free up to `count` cached blocks, the longest unused first."""
        for _ in range(min(count, len(self._unreferenced))):
            block, _ = self._unreferenced.popitem(last=False)
            key = self._keys[block]
            assert key is not None
            del self._by_key[key]
            self._keys[block] = None
            self._states[block] = _FREE
            self._num_free += 1

    # --- placement ----------------------------------------------------------------------------------------------------

    def _find_run(self, count: int, growth: int, after: int | None) -> int | None:
        """Where `count` consecutive free blocks begin: right after `after` if they are there, else in the longest run.

        Behind a block in use, the longest run is shared: the sequence that holds the block may grow into its first
        half.
        """
        if after is not None and self._states[after : after + count] == bytes(count):
            return after
        start, end = max(self._free_runs(), key=lambda run: run[1] - run[0], default=(0, 0))
        length = end - start
        if length < count:
            return None
        if start == 0 or self._states[start - 1] != _USED:
            return start
        return start + min(length - count, max(length - count - growth, length // 2))

    def _scattered(self, count: int) -> list[int]:
        """`count` free blocks in as few runs as there are."""
        blocks: list[int] = []
        for start, end in sorted(self._free_runs(), key=lambda run: run[0] - run[1]):
            blocks.extend(range(start, min(end, start + count - len(blocks))))
            if len(blocks) == count:
                break
        return blocks

    def _free_runs(self) -> list[tuple[int, int]]:
        return [match.span() for match in _FREE_RUN.finditer(self._states)]

    # --- integrity ----------------------------------------------------------------------------------------------------

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Verify the invariants against all live tables. Raises RuntimeError naming what is wrong."""
        held = Counter(block for table in tables for block in table)
        for block, references in enumerate(self._references):
            if references != held[block]:
                raise RuntimeError(f"block {block} has {references} references, {held[block]} tables hold it")
            key = self._keys[block]
            state = _USED if references else _FREE if key is None else _CACHED
            if self._states[block] != state:
                raise RuntimeError(f"block {block} is in state {self._states[block]}, should be in {state}")
            if (block in self._unreferenced) != (state == _CACHED):
                raise RuntimeError(f"block {block} is wrongly in or out of the order of eviction")
            if key is not None and self._by_key.get(key) != block:
                raise RuntimeError(f"block {block} can't be found by its key")
        if len(self._by_key) != sum(key is not None for key in self._keys):
            raise RuntimeError("a key names a block that does not carry it")
        if self._num_free != self._states.count(_FREE):
            raise RuntimeError(f"{self._num_free} blocks are counted free, {self._states.count(_FREE)} are")
