"""A tokenizer's special tokens beside texts that spell them."""

import re
import secrets
from collections.abc import Collection, Iterable, Mapping

import tokenizers

FORKS = 16  # at most, one in another, where spellings differ


def added_tokens(backend: tokenizers.Tokenizer) -> dict[int, tokenizers.AddedToken]:
    found: dict[int, tokenizers.AddedToken] = backend.get_added_tokens_decoder()
    return found


class Aliases:
    """Second spellings of special tokens, which nobody can guess.

    The library can take all special tokens in a text for ordinary text, or none. So those that are meant get their
    alias, which is no special token to it, and then it takes all for text. Texts around a token are cut as ever:
    they are encoded in one call.
    """

    def __init__(self, spelled: Mapping[str, str], ids: Mapping[int, int]) -> None:
        """`spelled`: special token -> alias. `ids`: the alias's id -> the token's."""
        self._spelled = dict(spelled)
        self._ids = dict(ids)
        self._known = frozenset(spelled.values())
        self._pattern = any_of(spelled)

    @classmethod
    def add(cls, backend: tokenizers.Tokenizer, special: Mapping[int, tokenizers.AddedToken]) -> "Aliases":
        """Of the `special` tokens by id, put into `backend`."""
        secret = secrets.token_hex(8)
        spelled = {token.content: f"\uf8f0{secret}-{id}\uf8f1" for id, token in special.items()}
        backend.add_tokens(
            [
                tokenizers.AddedToken(
                    spelled[token.content],
                    single_word=token.single_word,
                    lstrip=token.lstrip,
                    rstrip=token.rstrip,
                    normalized=token.normalized,
                    special=False,
                )
                for token in special.values()
            ]
        )
        found = {backend.token_to_id(spelled[token.content]): id for id, token in special.items()}
        return cls(spelled, {alias: id for alias, id in found.items() if alias is not None})

    def __contains__(self, token: object) -> bool:
        return token in self._known

    def encode(
        self, backend: tokenizers.Tokenizer, text: str, literals: Mapping[str, str], *, add_special: bool
    ) -> list[int]:
        """See `Tokenizer.encode`. `backend` has these aliases, and is this thread's alone."""
        meant = self._pattern.sub(lambda token: self._spelled[token[0]], text)
        whole = meant.translate({ord(character): spelled for character, spelled in literals.items()})
        backend.encode_special_tokens = True
        try:
            found: list[int] = backend.encode_batch_fast([whole], add_special_tokens=add_special)[0].ids
        finally:
            backend.encode_special_tokens = False
        return [self._ids.get(id, id) for id in found]


def any_of(spelled: Collection[str]) -> "re.Pattern[str]":
    """Finds the longest that begins at a place, as tokenizers do. What begins alike is looked at once: hundreds do, and
    all of the search holds the interpreter's lock."""
    return re.compile(_tree(set(spelled), FORKS) if spelled else "(?!)")


def _tree(spelled: set[str], forks: int) -> str:
    first, last = min(spelled), max(spelled)
    size = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    start = re.escape(first[:size])
    rest = {text[size:] for text in spelled}
    if not forks:
        return start + _one_of(re.escape(text) for text in sorted(rest, key=len, reverse=True))
    groups: dict[str, set[str]] = {}
    for text in rest - {""}:
        groups.setdefault(text[0], set()).add(text)
    branches = _one_of(_tree(group, forks - 1) for group in groups.values())
    return start + (f"(?:{branches})?" if groups and "" in rest else branches)


def _one_of(patterns: Iterable[str]) -> str:
    found = list(patterns)
    return found[0] if len(found) == 1 else f"(?:{'|'.join(found)})" if found else ""
