"""How few tokens a text can have, told by its length.

A tokenizer that keeps every character needs at least a token for as many characters as its longest token has. What may
drop characters, or take any number of them at once, has no such bound.
"""

import json
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import tokenizers
from tokenizers.models import BPE

from models.tokenizer.control_tokens import added_tokens

_BYTE_NAME = 6  # characters of <0x0A>
_UTF8 = range(0x80, 0xC0)  # bytes of which every character beyond ASCII has one


@dataclass(frozen=True, slots=True)
class TokenLengths:
    """Of one tokenizer."""

    longest: float = inf  # characters that a token stands for at most, in UTF-8 bytes where tokens are made of those
    lost: frozenset[str] = frozenset()  # characters that become no token

    def least(self, text: str) -> float:
        """Tokens that `text` has at least."""
        return (len(text) - sum(map(text.count, self.lost))) / self.longest


def token_lengths(
    backend: tokenizers.Tokenizer, table: Sequence[bytes], alphabet: Mapping[int, str] | None, hidden: Container[str]
) -> TokenLengths:
    """`table`: of each id its bytes. `alphabet`: of a byte-level tokenizer, how bytes are spelled in it; None: it is
    sentencepiece's. `hidden`: added tokens that no text spells."""
    model = backend.model
    added = [token for token in added_tokens(backend).values() if token.content not in hidden]
    if not isinstance(model, BPE) or model.continuing_subword_prefix or model.end_of_word_suffix:
        return TokenLengths()
    if any(token.lstrip or token.rstrip for token in added):  # with all blanks around it
        return TokenLengths()
    normalizers = list(_steps(backend.normalizer, "normalizers"))
    splitters = list(_steps(backend.pre_tokenizer, "pretokenizers"))
    if not (all(map(_keeps_characters, normalizers)) and all(map(_keeps_all, splitters))):
        return TokenLengths()
    contents = [token.content for token in added]
    if alphabet is not None:
        missing = {byte for byte, spelled in alphabet.items() if model.token_to_id(spelled) is None}
        if normalizers or missing & set(_UTF8) or not any(step["type"] == "ByteLevel" for step in splitters):
            return TokenLengths()
        longest = max(map(len, [*table, *(content.encode() for content in contents)]))
        return TokenLengths(longest, frozenset(chr(byte) for byte in missing if byte < 0x80))
    # Without its bytes a character is unknown, and any number of such may be one token, or none.
    if not model.byte_fallback or any(model.token_to_id(f"<0x{byte:02X}>") is None for byte in range(256)):
        return TokenLengths()
    if backend.normalizer is not None:  # what it makes of added tokens may be looked for in what it makes of a text
        contents += [backend.normalizer.normalize_str(content) for content in contents]
    pieces = (piece.decode(errors="replace") for piece in table)
    return TokenLengths(max(_BYTE_NAME, *map(len, pieces), *map(len, contents)))


def _steps(part: Any, name: str) -> Iterator[dict[str, Any]]:
    """Of a normaliser or a pre-tokenizer, which may be a sequence of them."""
    pending = [json.loads(part.__getstate__())] if part else []
    while pending:
        step = pending.pop()
        if step["type"] == "Sequence":
            pending.extend(step[name])
        else:
            yield step


def _keeps_characters(step: dict[str, Any]) -> bool:
    """Puts something in front, or one character in place of another."""
    match step["type"]:
        case "Prepend":
            return True
        case "Replace":
            return len(step["pattern"].get("String", "")) == 1 == len(step["content"])
    return False


def _keeps_all(step: dict[str, Any]) -> bool:
    return step["type"] in ("ByteLevel", "Digits", "Metaspace") or (
        step["type"] == "Split" and step["behavior"] != "Removed"
    )
