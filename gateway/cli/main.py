"""`gateway serve | doctor | ready | models | transcribe`"""

import io
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway import __version__
from gateway.config.settings import Settings, SettingsError, load_settings, unknown_variables
from pipelines import logs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.api.audio.request import Format

EXIT_UNHEALTHY = 1
EXIT_USAGE = 2

_CONFIG = click.option(
    "--config", "-c", type=click.Path(dir_okay=False), help="Configuration file.  [default: gateway.toml, if there]"
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gateway")
def main() -> None:
    """Serve local models behind an OpenAI-compatible API."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that can't show a character shows another one


@main.command()
@click.option("--host", help="Address to bind.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="Port; 0 takes a free one.  [default: 8000]")
@_CONFIG
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]))
@click.option("--log-format", type=click.Choice(["text", "json"]), help="Of log lines.  [default: text]")
def serve(
    host: str | None, port: int | None, config: str | None, log_level: str | None, log_format: str | None
) -> None:
    """Load the models and answer requests until SIGTERM, SIGHUP or Ctrl-C."""
    given = {"host": host, "port": port, "log_level": log_level, "log_format": log_format}
    settings = _settings(config, {name: value for name, value in given.items() if value is not None})
    logs.configure(settings.server.log)
    for name in unknown_variables(os.environ):
        logging.getLogger("gateway").warning("%s is not known and has no effect", name)
    # Its lines at this level are about each start and stop; ours say it already.
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, logging.getLogger().level))

    from gateway.cli.console import announcer
    from gateway.http.listener import bind
    from gateway.serve import run

    try:
        listener = bind(settings.server)
    except OSError as error:
        raise _Usage(f"cannot listen on {settings.server.host}:{settings.server.port}: {error.strerror}") from None
    run(settings, listener, announcer(settings))


@main.command()
@_CONFIG
@_JSON
def doctor(config: str | None, as_json: bool) -> None:
    """Say what this machine has and what is wrong. Exits with 1 if something is."""
    from gateway.cli.doctor import examine
    from gateway.cli.reports import print_json, print_report

    report = examine(config, os.environ)
    if as_json:
        print_json(report)
    else:
        print_report(report)
    if not report.healthy:
        sys.exit(EXIT_UNHEALTHY)


@main.command()
@click.option("--port", type=click.IntRange(1, 65535), help="Where it listens.  [default: as configured]")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), default=2.0, show_default=True, help="Seconds.")
@_CONFIG
def ready(port: int | None, timeout: float, config: str | None) -> None:
    """Ask the running gateway of this configuration whether it serves. Exits with 1 if not."""
    from gateway.cli.probing import not_ready

    settings = _settings(config, {} if port is None else {"port": port})
    if (reason := not_ready(settings.server, timeout)) is not None:
        click.echo(reason)
        sys.exit(EXIT_UNHEALTHY)


@main.group(invoke_without_command=True)
@_CONFIG
@_JSON
@click.pass_context
def models(context: click.Context, config: str | None, as_json: bool) -> None:
    """List the configured models, and the embedded ones that could be."""
    if context.invoked_subcommand is not None:
        return
    from gateway.cli.reports import print_inventory, print_json
    from gateway.config.inventory import inventory

    found = inventory(_settings(config, {}))
    if as_json:
        print_json(found)
    else:
        print_inventory(found)


@models.command()
@_CONFIG
def prepare(config: str | None) -> None:
    """Export the configured embedding models now, so that no start has to. Exits with 1 if one can't be."""
    from gateway.cli.prepare import prepare_models

    failed = False
    for name, outcome in prepare_models(_settings(config, {})):
        click.echo(f"{name}: {outcome.text}")
        failed = failed or outcome.failed
    if failed:
        sys.exit(EXIT_UNHEALTHY)


@main.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--format",
    "format",
    type=click.Choice(["text", "srt", "vtt", "json", "verbose_json"]),
    default="text",
    show_default=True,
    help="What to write.",
)
@click.option("--follow", is_flag=True, help="Print text as it is recognised.")
@click.option("--language", help="ISO 639-1 code of what is spoken.  [default: detected]")
@click.option("--translate", is_flag=True, help="Into English.")
@click.option("--prompt", default="", help="Text that could come before: its spelling is followed.")
@click.option("--model", "-m", help="Name of a configured audio model.  [default: the first]")
@click.option(
    "--output",
    "-o",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Folder to write a file into for each, called like it.  [default: print them, captions as one]",
)
@_CONFIG
def transcribe(
    files: tuple[Path, ...],
    format: "Format",
    follow: bool,
    language: str | None,
    translate: bool,
    prompt: str,
    model: str | None,
    output: Path | None,
    config: str | None,
) -> None:
    """Transcribe audio and video FILES. Exits with 1 if one of them can't be."""
    from gateway.cli.transcribe import TranscribeError, TranscribeOptions, audio_model, quiet
    from gateway.cli.transcribe_console import run

    if follow and (format != "text" or output is not None):
        raise _Usage("--follow prints plain text; leave out --format and --output")
    quiet()
    options = TranscribeOptions(format, "translate" if translate else "transcribe", language, prompt)
    try:
        if not run(audio_model(_settings(config, {}), model), options, files, output, follow=follow):
            sys.exit(EXIT_UNHEALTHY)
    except TranscribeError as error:
        raise _Usage(str(error)) from None


class _Usage(click.ClickException):
    exit_code = EXIT_USAGE


def _settings(config: str | None, overrides: "Mapping[str, object]") -> Settings:
    try:
        return load_settings(config, os.environ, overrides)
    except SettingsError as error:
        raise _Usage(str(error)) from None
