"""What `gateway doctor` and `gateway models` show."""

import sys

import msgspec
from msgspec import Struct
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gateway.console import make_console
from gateway.doctor import Report
from gateway.inventory import Inventory

MIB = 2**20

MARKS = {"ok": "[green]ok[/green]", "note": "[yellow]note[/yellow]", "problem": "[red]fix[/red]"}


def print_report(report: Report, console: Console | None = None) -> None:
    console = console or make_console()
    table = Table(
        title=f"gateway {report.version}", title_justify="left", title_style="bold", show_header=False, box=None
    )
    for finding in report.findings:
        text = escape(finding.text)
        if finding.advice:
            text += f"\n[bold]→ {escape(finding.advice)}[/bold]"
        table.add_row(MARKS[finding.status], escape(finding.area), text)
    console.print(table)
    problems = sum(finding.status == "problem" for finding in report.findings)
    console.print(f"[red]{problems} to fix[/red]" if problems else "[green]Nothing is wrong.[/green]")


def print_inventory(found: Inventory, console: Console | None = None) -> None:
    console = console or make_console()
    table = Table(title="Configured", title_justify="left", title_style="bold")
    for column in ("model", "aliases", "kind", "device", "source", "size"):
        table.add_column(column, overflow="fold")
    for model in found.configured:
        size = f"{model.bytes / MIB:.0f} MiB" if model.bytes is not None else escape(model.problem or "not fetched yet")
        table.add_row(model.name, ", ".join(model.aliases) or "–", model.kind, model.device, escape(model.source), size)
    console.print(table)
    table = Table(title="Embedded", title_justify="left", title_style="bold")
    for column in ("model", "kind", "package", "installed", "configured"):
        table.add_column(column, overflow="fold")
    for entry in found.embedded:
        flags = ("yes" if flag else "no" for flag in (entry.installed, entry.configured))
        table.add_row(entry.name, entry.kind, entry.package, *flags)
    console.print(table)


def print_json(document: Struct) -> None:
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(document)).decode() + "\n")
