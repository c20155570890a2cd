"""A TOML file whose keys know their line."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

_ARRAY = re.compile(r"\s*\[\[\s*([^\[\]]+?)\s*\]\]")
_TABLE = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(?:#.*)?$")
_KEY = re.compile(r"""\s*([\w\-."']+)\s*=""")


class ConfigFile(Struct, frozen=True):
    path: Path
    values: dict[str, object]
    lines: Mapping[str, int]  # key path, as `models[0].text.max_num_seqs` -> 1-based line

    def where(self, key: str) -> str:
        """`file:line` of a key, or of the innermost table around it; the file alone where nothing is near."""
        while key:
            if line := self.lines.get(key):
                return f"{self.path}:{line}"
            key = key[: max(key.rfind("."), key.rfind("["), 0)]
        return str(self.path)


def read(path: Path) -> ConfigFile:
    """Raises OSError, UnicodeDecodeError, or tomllib.TOMLDecodeError, whose text names line and column."""
    text = path.read_text(encoding="utf-8")
    return ConfigFile(path, tomllib.loads(text), key_lines(text))


def key_lines(text: str) -> dict[str, int]:
    """The line of each table and key of a valid TOML text. A line inside a multi-line string may be taken for a key,
    which then only adds a path that nobody asks for."""
    lines: dict[str, int] = {}
    counts: dict[str, int] = {}  # array table -> elements so far
    table = ""

    def full(dotted: str) -> str:
        """A header's name, with the current index of each array table on its way."""
        path = ""
        for part in re.split(r"\s*\.\s*", dotted):
            path = f"{path}.{part.strip(_QUOTES)}".removeprefix(".")
            if path in counts:
                path += f"[{counts[path] - 1}]"
        return path

    for number, line in enumerate(text.splitlines(), 1):
        if found := _ARRAY.match(line):
            *parents, last = re.split(r"\s*\.\s*", found[1])
            name = f"{full('.'.join(parents))}.{last.strip(_QUOTES)}".removeprefix(".")
            counts[name] = counts.get(name, 0) + 1
            table = f"{name}[{counts[name] - 1}]"
            lines.setdefault(name, number)
            lines[table] = number
        elif found := _TABLE.match(line):
            table = full(found[1])
            lines[table] = number
        elif found := _KEY.match(line):
            key = ".".join(part.strip(_QUOTES) for part in found[1].split("."))
            lines.setdefault(f"{table}.{key}".removeprefix("."), number)
    return lines


_QUOTES = "\"'"
