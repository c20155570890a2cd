"""`benchmarks.md` and, beside it, the same as `benchmarks.json`."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from tests.benchmarks.figures import Comparison, Figure
from tests.benchmarks.machine import Machine


def write(directory: Path, machine: Machine, measured: Sequence[Comparison]) -> None:
    """Comparisons of earlier runs on such a machine stay there, but for those that were measured again."""
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "benchmarks.json"
    kept = {each.name: each for each in _read(file, machine)}
    comparisons = list((kept | {each.name: each for each in measured}).values())
    document = {"machine": machine, "comparisons": [_record(each) for each in comparisons]}
    file.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")
    (directory / "benchmarks.md").write_text(_page(machine, comparisons))


def _read(file: Path, machine: Machine) -> list[Comparison]:
    try:
        document = msgspec.json.decode(file.read_bytes())
        if document["machine"]["processor"] != machine.processor or document["machine"]["cores"] != machine.cores:
            return []
        return msgspec.convert(document["comparisons"], list[Comparison])
    except (OSError, KeyError, msgspec.MsgspecError):
        return []


def line(figure: Figure) -> str:
    """For the terminal."""
    spread = f"{number(min(figure.values))} … {number(max(figure.values))}"
    bounds = f"  goal {_goal(figure)}, floor {_floor(figure)}: {figure.verdict}" if figure.bounds else ""
    return f"{figure.name:34} {number(figure.value):>8} {figure.unit:9} ({spread}){bounds}"


def number(value: float) -> str:
    """Three significant digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _record(comparison: Comparison) -> dict[str, object]:
    """As it is, and of each figure what follows from it."""
    record: dict[str, object] = msgspec.to_builtins(comparison)
    record["figures"] = [
        {**msgspec.to_builtins(figure), "median": figure.value, "verdict": figure.verdict}
        for figure in comparison.figures
    ]
    return record


def _page(machine: Machine, comparisons: Sequence[Comparison]) -> str:
    versions = ", ".join(f"{name} {value}" for name, value in machine.versions.items())
    figures = [figure for comparison in comparisons for figure in comparison.figures]
    notes = [note for comparison in comparisons for note in comparison.notes]
    parts = [
        "# Benchmarks\n",
        "Written by `make bench`, whole or one comparison at a time (`make bench ARGS='--only NAME --out docs'`).\n"
        "A comparison alternates its subjects round by round, one busy at a time, after a round that is thrown away; a "
        "ratio is\ntaken within each round. Figures are medians, the spread is the smallest … the largest round. "
        "`benchmarks.json` has\nevery round.\n",
        f"- Machine: {machine.processor}, {machine.cores} cores, {machine.memory_gib:g} GiB, {machine.instructions}",
        f"- System: {machine.system}, Python {machine.python}",
        f"- Model: {machine.model}",
        f"- Versions: {versions}",
        *(
            f"- {each.name}: {each.rounds} round(s), {each.seconds / 60:.1f} minutes, {each.date}"
            for each in comparisons
        ),
        "\n## Held to bounds\n",
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
