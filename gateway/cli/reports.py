"""What `gateway doctor` and `gateway models` show."""

import sys

import msgspec
from msgspec import Struct
from rich.console import Console
from rich.text import Text

from gateway.cli.columns import Cell, print_columns
from gateway.cli.doctor import Report
from gateway.config.inventory import ConfiguredModel, EmbeddedModel, Inventory

MIB = 2**20

MARKS = {"ok": Text("ok", style="green"), "note": Text("note", style="yellow"), "problem": Text("fix", style="red")}


def print_report(report: Report, console: Console | None = None) -> None:
    console = console or Console()
    console.print(f"gateway {report.version}", style="bold", highlight=False)
    rows: list[list[Cell]] = []
    for finding in report.findings:
        advice = f"\n→ {finding.advice}" if finding.advice else ""
        rows.append([MARKS[finding.status], finding.area, finding.text + advice])
    print_columns(console, rows)
    problems = sum(finding.status == "problem" for finding in report.findings)
    console.print(f"[red]{problems} to fix[/red]" if problems else "[green]Nothing is wrong.[/green]")


def print_inventory(found: Inventory, console: Console | None = None) -> None:
    console = console or Console()
    console.print("Configured", style="bold")
    print_columns(console, [_head("model", "kind", "size", "source"), *map(_configured, found.configured)])
    console.print("\nEmbedded", style="bold")
    print_columns(console, [_head("model", "kind", "", "package"), *map(_embedded, found.embedded)])


def _configured(model: ConfiguredModel) -> list[Cell]:
    size = f"{model.bytes / MIB:.0f} MiB" if model.bytes is not None else "–"
    more = [model.problem] if model.problem else []
    if model.aliases:
        more.append(f"also {', '.join(model.aliases)}")
    return [model.name, model.kind, size, "\n".join((model.source, *more))]


def _embedded(model: EmbeddedModel) -> list[Cell]:
    state = "configured" if model.configured else "installed" if model.installed else "not installed"
    return [model.name, model.kind, state, model.package]


def _head(*names: str) -> list[Cell]:
    return [Text(name, style="bold") for name in names]


def print_json(document: Struct) -> None:
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(document)).decode() + "\n")
