"""`benchmarks.md` and, beside it, the same as `benchmarks.json`."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from tests.benchmarks.figures import Figure
from tests.benchmarks.machine import Machine


def write(
    directory: Path, machine: Machine, figures: Sequence[Figure], notes: Sequence[str], rounds: int, seconds: float
) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    document = {
        "machine": machine,
        "rounds": rounds,
        "seconds": round(seconds),
        "figures": [_record(figure) for figure in figures],
        "notes": list(notes),
    }
    (directory / "benchmarks.json").write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")
    (directory / "benchmarks.md").write_text(_page(machine, figures, notes, rounds, seconds))


def line(figure: Figure) -> str:
    """For the terminal."""
    spread = f"{number(min(figure.values))} … {number(max(figure.values))}"
    bounds = f"  goal {_goal(figure)}, floor {_floor(figure)}: {figure.verdict}" if figure.bounds else ""
    return f"{figure.name:34} {number(figure.value):>8} {figure.unit:9} ({spread}){bounds}"


def number(value: float) -> str:
    """Three significant digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _record(figure: Figure) -> dict[str, object]:
    bounds = figure.bounds
    return {
        "name": figure.name,
        "definition": figure.definition,
        "unit": figure.unit,
        "median": figure.value,
        "values": list(figure.values),
        "goal": bounds.goal if bounds else None,
        "floor": bounds.floor if bounds else None,
        "lower_is_better": bounds.lower if bounds else None,
        "verdict": figure.verdict,
    }


def _page(machine: Machine, figures: Sequence[Figure], notes: Sequence[str], rounds: int, seconds: float) -> str:
    versions = ", ".join(f"{name} {value}" for name, value in machine.versions.items())
    parts = [
        "# Benchmarks\n",
        "Written by `make bench`. A comparison alternates its subjects round by round, one busy at a time, after a "
        "round that\nis thrown away; a ratio is taken within each round. Figures are medians, the spread is the "
        "smallest … the largest\nround. `benchmarks.json` has every round.\n",
        f"- Machine: {machine.processor}, {machine.cores} cores, {machine.memory_gib:g} GiB, {machine.instructions}",
        f"- System: {machine.system}, Python {machine.python}",
        f"- Model: {machine.model}",
        f"- Versions: {versions}",
        f"- {rounds} round(s), {seconds / 60:.1f} minutes, {machine.date}\n",
        "## Held to bounds\n",
        _table([figure for figure in figures if figure.bounds], bounds=True),
        "## For information\n",
        _table([figure for figure in figures if not figure.bounds], bounds=False),
    ]
    if notes:
        parts += ["## Notes\n", *(f"- {note}" for note in notes), ""]
    return "\n".join(parts)


def _table(figures: Sequence[Figure], *, bounds: bool) -> str:
    head = ["figure", "median", "spread", *(["goal", "floor", ""] if bounds else []), "definition"]
    rows = [head, ["---"] * len(head), *(_row(figure, bounds=bounds) for figure in figures)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _row(figure: Figure, *, bounds: bool) -> list[str]:
    spread = f"{number(min(figure.values))} … {number(max(figure.values))}"
    held = [_goal(figure), _floor(figure), figure.verdict] if bounds else []
    return [figure.name, f"{number(figure.value)} {figure.unit}", spread, *held, figure.definition]


def _goal(figure: Figure) -> str:
    return f"{_sign(figure)} {figure.bounds.goal:g}" if figure.bounds else ""


def _floor(figure: Figure) -> str:
    return f"{_sign(figure)} {figure.bounds.floor:g}" if figure.bounds else ""


def _sign(figure: Figure) -> str:
    return "≤" if figure.bounds and figure.bounds.lower else "≥"
