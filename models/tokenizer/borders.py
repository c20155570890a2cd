"""Where a text can be cut so that both sides have the tokens that they have in the whole.

Tokenizers split a text into words before they look for tokens in them, and no word spans a single space between two
letters. So the tokens of what is before such a space are the first ones of the whole, and those of the space and what
follows it are the last ones: a long text of which only some tokens are wanted need not be read as a whole.
"""

import json
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Literal

import tokenizers

# Letters and digits that no normaliser composes with a space or with what stands on its other side.
_LETTER = "0-9A-Za-zÀ-ÖØ-öø-ɏΑ-ΡΣ-Ωα-ωА-яЁё\u4e00-\u9fff"
_IS_LETTER = re.compile(f"[{_LETTER}]")
_SPANNING = re.compile(f"[{_LETTER}] [{_LETTER}]")

CHARACTERS = 8  # of a token, more than in most texts: the first look at a text is so long
GROWTH = 4

# Steps that read a text character by character, or within a word.
_NORMALIZERS = {
    "BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Precompiled", "Strip", "StripAccents"
}  # fmt: skip
_SPLITTERS = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"}
_WITHIN_WORDS = {"Digits", "Punctuation", "UnicodeScripts"}

# A text with what tokenizers trip over, to see that the rules hold.
_SAMPLE = (
    "  The Straße in São Paulo: café, naïve\u0301 e\u0301tude — 1,234.56 km² (§7)…\n\n\tdef f(x):  return x ** 2\r\n"
    "МОСКВА и Ёлка 東京 タワー 中文 字符 한국어 Ω α 👩\u200d👧 ﬁ ½ a b c <mask> [SEP] </s> don't I'll 're x1 1x 2 "
)


class Borders:
    """Of one tokenizer, and for its thread. What it does is looked into with the first long text."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend

    @cached_property
    def known(self) -> bool:
        """Whether the tokenizer is one that splits at spaces."""
        return _splits_at_spaces(json.loads(self._backend.to_str())) and _holds(self._backend)

    def parts(self, text: str, tokens: int, side: Literal["start", "end"]) -> Iterator[str]:
        """Growing parts of a text from its start or its end; the last one is the text. The first is long enough for
        `tokens`, mostly."""
        size = tokens * CHARACTERS + 1
        while size < len(text) and self.known:
            at = _before(text, size) if side == "start" else _after(text, len(text) - size)
            if at is not None:
                yield text[:at] if side == "start" else text[at:]
            size *= GROWTH
        yield text


def _before(text: str, end: int) -> int | None:
    """The last border in the second half of the first `end` characters."""
    at = text.rfind(" ", end // 2, end)
    while at > 0:
        if _is_border(text, at):
            return at
        at = text.rfind(" ", end // 2, at)
    return None


def _after(text: str, start: int) -> int | None:
    """The first border from `start` on, in the first half of what follows."""
    half = (start + len(text)) // 2
    at = text.find(" ", max(start, 1), half)
    while at > 0:
        if _is_border(text, at):
            return at
        at = text.find(" ", at + 1, half)
    return None


def _is_border(text: str, at: int) -> bool:
    return (
        0 < at < len(text) - 1
        and _IS_LETTER.match(text[at - 1]) is not None
        and _IS_LETTER.match(text[at + 1]) is not None
    )


# --- what is known of a tokenizer -------------------------------------------------------------------------------------


def _splits_at_spaces(description: dict[str, Any]) -> bool:
    """By its parts: any that is not known may do anything."""
    return (
        all(_keeps_places(step) for step in _steps(description["normalizer"], "normalizers"))
        and _splits(_steps(description["pre_tokenizer"], "pretokenizers"))
        and not description["model"].get("dropout")
        and not any(_spans(token) for token in description["added_tokens"])
    )


def _steps(part: dict[str, Any] | None, name: str) -> list[dict[str, Any]]:
    if part is None:
        return []
    return [step for each in part[name] for step in _steps(each, name)] if part["type"] == "Sequence" else [part]


def _keeps_places(step: dict[str, Any]) -> bool:
    if step["type"] == "Replace":  # of runs of spaces by one, or of characters that are no letters and no spaces
        pattern = step["pattern"]
        return pattern.get("Regex") in (" {2,}", r"\s+") or not re.search(f"[{_LETTER} ]", pattern.get("String", " "))
    return step["type"] in _NORMALIZERS


def _splits(steps: list[dict[str, Any]]) -> bool:
    found = False
    for step in steps:
        match step["type"]:
            case kind if kind in _SPLITTERS:
                found = True
            case "Metaspace":
                found = found or step.get("split", True)
            case "ByteLevel":
                found = found or step.get("use_regex", True)
            case "Split":  # GPT's expressions: a word is letters with at most a space before them
                pattern = step["pattern"].get("Regex", "")
                found = found or (r"\p{L}+" in pattern and r"\s+(?!\S)" in pattern and not step.get("invert"))
            case kind if kind not in _WITHIN_WORDS:
                return False
    return found


def _spans(token: dict[str, Any]) -> bool:
    """Whether an added token may take a border's space for itself."""
    content: str = token["content"]
    at_left = token["lstrip"] and _IS_LETTER.match(content[:1])
    at_right = token["rstrip"] and _IS_LETTER.match(content[-1:])
    return bool(_SPANNING.search(content) or at_left or at_right)


def _holds(backend: tokenizers.Tokenizer) -> bool:
    try:
        return _is_additive(backend, _SAMPLE)
    except Exception:  # noqa: BLE001 (the library's own: it can't read all of the sample)
        return False


def _is_additive(backend: tokenizers.Tokenizer, text: str) -> bool:
    def ids(text: str) -> list[int]:
        found: list[int] = backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return found

    whole = ids(text)
    borders = [at for at, character in enumerate(text) if character == " " and _is_border(text, at)]
    return all(ids(text[:at]) + ids(text[at:]) == whole for at in borders)
