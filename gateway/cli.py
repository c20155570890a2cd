"""`gateway serve | doctor | models`"""

import logging
import os
import sys
from typing import TYPE_CHECKING

import click

from gateway import __version__
from gateway.settings import Settings, SettingsError, load_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

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


@main.command()
@click.option("--host", help="Address to bind.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="Port; 0 takes a free one.  [default: 8000]")
@_CONFIG
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]))
def serve(host: str | None, port: int | None, config: str | None, log_level: str | None) -> None:
    """Load the models and answer requests until SIGTERM or Ctrl-C."""
    given = {"host": host, "port": port, "log_level": log_level}
    settings = _settings(config, {name: value for name, value in given.items() if value is not None})
    logging.basicConfig(
        level=settings.server.log_level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    # Its lines at this level are about each start and stop; ours say it already.
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, logging.getLogger().level))

    from gateway.console import ConsoleAnnouncer
    from gateway.serving import bind, run

    try:
        listener = bind(settings.server)
    except OSError as error:
        raise _Usage(f"cannot listen on {settings.server.host}:{settings.server.port}: {error.strerror}") from None
    run(settings, listener, ConsoleAnnouncer(settings))


@main.command()
@_CONFIG
@_JSON
def doctor(config: str | None, as_json: bool) -> None:
    """Say what this machine has and what is wrong. Exits with 1 if something is."""
    from gateway.doctor import examine
    from gateway.reports import print_json, print_report

    report = examine(config, os.environ)
    if as_json:
        print_json(report)
    else:
        print_report(report)
    if not report.healthy:
        sys.exit(EXIT_UNHEALTHY)


@main.command()
@_CONFIG
@_JSON
def models(config: str | None, as_json: bool) -> None:
    """List the configured models, and the embedded ones that could be."""
    from gateway.inventory import inventory
    from gateway.reports import print_inventory, print_json

    found = inventory(_settings(config, {}))
    if as_json:
        print_json(found)
    else:
        print_inventory(found)


class _Usage(click.ClickException):
    exit_code = EXIT_USAGE


def _settings(config: str | None, overrides: "Mapping[str, object]") -> Settings:
    try:
        return load_settings(config, os.environ, overrides)
    except SettingsError as error:
        raise _Usage(str(error)) from None
