"""A model's description, read by the types and the ranges that its keys have.

Descriptions come with files that anyone may have written. What is not as it has to be is refused here, by its key, so
that nobody behind has to look again.
"""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType, UnionType
from typing import Any, TypeVar

from models.errors import ModelLoadError

T = TypeVar("T")

# More than any model has, and little enough that what is made of a description alone stays small.
MOST_LAYERS = 4096
MOST_HEADS = 1 << 14
MOST_HEAD_DIM = 1 << 12
MOST_WIDTH = 1 << 20  # of a layer
MOST_TOKENS = 1 << 24  # of a vocabulary
MOST_POSITIONS = (1 << 31) - 1
MOST_EPSILON = 0.1

_SHOWN = 60  # characters of a value in a message


class Fields:
    """Values by key. All methods raise ModelLoadError with the key's name; a value of None is as good as none."""

    def __init__(
        self,
        values: Mapping[str, Any],
        where: str,
        prefix: str = "",
        *,
        names: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`where`: whose they are, for messages; `prefix`: of the keys that are asked for; `names`: of those that have
        another name behind it."""
        self.where = where
        self._values = values
        self._prefix = prefix
        self._names = names

    def within(self, values: Mapping[str, Any]) -> "Fields":
        """A part of the description that has its own values, by the same names."""
        return Fields(values, self.where, self._prefix, names=self._names)

    def name(self, key: str) -> str:
        return f"{self._prefix}{self._names.get(key, key)}"

    def get(self, key: str) -> Any:
        """Whatever it is."""
        return self._values.get(self.name(key))

    def integer(self, key: str, default: int | None = None, *, least: int = 1, most: int = MOST_POSITIONS) -> int:
        found = self.maybe_integer(key, least=least, most=most)
        return found if found is not None else self._default(key, default)

    def maybe_integer(self, key: str, *, least: int = 1, most: int = MOST_POSITIONS) -> int | None:
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.refused(key, f"an integer from {least} to {most}")
        return value

    def number(
        self, key: str, default: float | None = None, *, least: float | None = None, most: float = math.inf
    ) -> float:
        found = self.maybe_number(key, least=least, most=most)
        return found if found is not None else self._default(key, default)

    def maybe_number(self, key: str, *, least: float | None = None, most: float = math.inf) -> float | None:
        """Finite, at least `least` (None: above zero) and at most `most`."""
        value = self.get(key)
        if value is None:
            return None
        if isinstance(value, int | float) and not isinstance(value, bool):
            try:
                number = float(value)
            except OverflowError:  # an integer of hundreds of digits
                number = math.inf
            if math.isfinite(number) and number <= most and (number > 0 if least is None else number >= least):
                return number
        lower = "above 0" if least is None else f"from {least:g}"
        raise self.refused(key, f"a finite number {lower}" + ("" if most == math.inf else f" up to {most:g}"))

    def boolean(self, key: str, default: bool = False) -> bool:
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refused(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self.get(key)
        if value is None:
            return self._default(key, default)
        if not isinstance(value, str):
            raise self.refused(key, "a text")
        return value

    def table(self, key: str) -> Mapping[str, Any] | None:
        value = self.get(key)
        if value is not None and not isinstance(value, Mapping):
            raise self.refused(key, "a table")
        return value

    def items(self, key: str, kind: type | UnionType, what: str) -> Sequence[Any] | None:
        """A list, all of whose items are of `kind`; of a GGUF file's array, which has one type, the first is looked
        at."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            raise self.refused(key, f"a list of {what}")
        if not all(isinstance(each, kind) for each in (value if isinstance(value, list) else value[:1])):
            raise self.refused(key, f"a list of {what}")
        return value

    def tokens(self, key: str) -> Sequence[int]:
        """Ids of tokens: one, a list, or none. Whether a vocabulary has them is not looked at."""
        value = self.get(key)
        found = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(id, int) and not isinstance(id, bool) for id in found):
            raise self.refused(key, "an id of a token, or a list of them")
        return found

    def refused(self, key: str, wanted: str) -> ModelLoadError:
        shown = repr(self.get(key))
        shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
        return ModelLoadError(f"{self.where}: {self.name(key)} is {shown}, not {wanted}")

    def _default(self, key: str, default: T | None) -> T:
        if default is None:
            raise ModelLoadError(f"{self.where} lacks {self.name(key)}")
        return default
