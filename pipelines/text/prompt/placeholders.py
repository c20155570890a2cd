"""What a conversation spells like a control token, kept apart from those that a template writes."""

from collections.abc import Collection, Mapping, Sequence

from models.tokenizer.control_tokens import any_of
from pipelines.base import InvalidRequest

JsonValue = str | int | float | bool | None | Sequence["JsonValue"] | Mapping[str, "JsonValue"]

# Halves of surrogate pairs: Python's strings can hold them alone, no text does.
_FIRST, _COUNT = 0xD800, 2048


class Controls:
    """The control tokens of a vocabulary, as they are spelled. Shared between threads."""

    def __init__(self, spelled: Collection[str]) -> None:
        self._pattern = any_of(spelled) if spelled else None

    def guard(self, messages: Sequence[Mapping[str, JsonValue]]) -> "tuple[list[JsonValue], dict[str, str]]":
        """The messages with a character in place of each control token that they spell, and what each character
        stands for.

        A template may trim a text, slice it, look for something in it or dump it as JSON: one character, which it
        can't tear apart, goes through all of that. Raises InvalidRequest where they spell too many different ones.
        """
        placeholders: dict[str, str] = {}
        return [self._guard(message, placeholders) for message in messages], {
            c: text for text, c in placeholders.items()
        }

    def _guard(self, value: JsonValue, placeholders: dict[str, str]) -> JsonValue:
        match value:
            case str():
                return value if self._pattern is None else self._pattern.sub(lambda m: _one(m[0], placeholders), value)
            case Mapping():
                return {
                    str(self._guard(key, placeholders)): self._guard(each, placeholders) for key, each in value.items()
                }
            case Sequence():
                return [self._guard(each, placeholders) for each in value]
        return value


def is_placeholder(character: str) -> bool:
    return _FIRST <= ord(character) < _FIRST + _COUNT


def _one(spelled: str, placeholders: dict[str, str]) -> str:
    if spelled not in placeholders:
        if len(placeholders) == _COUNT:
            raise InvalidRequest(f"the messages spell more than {_COUNT} different control tokens", "messages")
        placeholders[spelled] = chr(_FIRST + len(placeholders))
    return placeholders[spelled]
