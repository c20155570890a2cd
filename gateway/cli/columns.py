"""Rows of text in columns that 80 characters hold, and that lose nothing: no cell is cut, no path broken."""

import textwrap
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

GAP = 2
WIDEST = 32  # of a column: what follows a longer cell begins on the next line
NARROWEST = 20  # of the last column: where the terminal leaves less, its lines are longer than that

Cell = str | Text


def print_columns(console: Console, rows: Sequence[Sequence[Cell]]) -> None:
    """The last cell of a row may have lines of its own; where it is too long for the terminal it goes on below itself,
    cut between words alone."""
    widths = [min(WIDEST, max(map(_width, column))) for column in zip(*(row[:-1] for row in rows), strict=True)]
    indent = sum(widths) + GAP * len(widths)
    room = max(NARROWEST, console.width - indent) if console.is_terminal else None
    for row in rows:
        line = Text()
        column = 0
        for cell, width in zip(row[:-1], widths, strict=True):
            line.append_text(_text(cell))
            column += width + GAP
            line.append(_space(line, column))
        first, *others = _wrapped(row[-1], room)
        line.append_text(first)
        for text in (line, *(Text(" " * indent).append_text(each) for each in others)):
            text.rstrip()
            console.print(text, soft_wrap=True, highlight=False)


def _space(line: Text, column: int) -> str:
    """Up to a column, on the next line where this one is past it."""
    used = cell_len(line.plain.rpartition("\n")[2])
    return " " * (column - used) if used <= column - GAP else "\n" + " " * column


def _wrapped(cell: Cell, room: int | None) -> list[Text]:
    if isinstance(cell, Text) or room is None:
        return list(_text(cell).split("\n")) or [Text()]
    lines = [
        part
        for line in cell.split("\n")
        for part in textwrap.wrap(line, room, break_long_words=False, break_on_hyphens=False) or [""]
    ]
    return [Text(line) for line in lines]


def _text(cell: Cell) -> Text:
    return cell if isinstance(cell, Text) else Text(cell)


def _width(cell: Cell) -> int:
    return cell_len(cell if isinstance(cell, str) else cell.plain)
