"""The names under which blocks of a prompt can be found again."""

import struct
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple


class PrefixKey(NamedTuple):
    """One block of a prompt and, through `parent`, all that stands before it.

    Compared field by field: two blocks are taken for equal only where their token ids are. A caller that walks a chain
    from its root has so compared every token of the prefix.
    """

    parent: bytes  # digest of the key before; b"" at the root
    tokens: tuple[int, ...]
    extra: bytes  # what the ids do not tell: the hash of the media behind placeholder tokens
    salt: str  # of the tenant: blocks of two salts never match

    def digest(self) -> bytes:
        """16 bytes that stand for the whole chain up to here."""
        state = blake2b(self.parent, digest_size=16)
        salt = self.salt.encode()
        state.update(struct.pack(f"<{len(self.tokens)}qqq", *self.tokens, len(self.extra), len(salt)))
        state.update(self.extra)
        state.update(salt)
        return state.digest()


def prefix_keys(
    tokens: Sequence[int], block_size: int, salt: str, extras: Mapping[int, bytes] | None = None
) -> list[PrefixKey]:
    """Keys of the full blocks of `tokens`, in order. `extras`: by number of the block."""
    keys: list[PrefixKey] = []
    parent = b""
    for number in range(len(tokens) // block_size):
        block = tuple(tokens[number * block_size : (number + 1) * block_size])
        key = PrefixKey(parent, block, extras.get(number, b"") if extras else b"", salt)
        keys.append(key)
        parent = key.digest()
    return keys
