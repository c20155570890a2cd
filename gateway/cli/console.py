"""What `gateway serve` shows: a screen on a terminal, lines in a log."""

import json
import logging
import sys
from collections.abc import Collection, Sequence

from rich.console import Console
from rich.text import Text

from gateway.backends.base import State
from gateway.cli.columns import Cell, print_columns
from gateway.config.settings import Settings
from gateway.endpoint import JSON, Endpoint
from gateway.requests.fleet import Fleet
from gateway.requests.routing import Route
from gateway.serve import Announcer

log = logging.getLogger("gateway")

AT_FIRST_USE = "on demand"  # the state of a model that is not preloaded and was not asked yet
STATE_COLOURS = {State.READY: "green", State.FAILED: "red"}


def announcer(settings: Settings) -> Announcer:
    """For whatever standard output is; who asks for JSON reads nothing else."""
    screen = sys.stdout.isatty() and settings.server.log_format == "text"
    return ScreenAnnouncer(settings, Console()) if screen else LogAnnouncer(settings)


class ScreenAnnouncer:
    """The address at once; the models, the endpoints and a line to paste when the models are there."""

    def __init__(self, settings: Settings, console: Console) -> None:
        self._settings = settings
        self._console = console

    def listening(self, url: str) -> None:
        self._console.print(f"Listening on [bold]{url}[/bold]", highlight=False)
        self._console.print(f"Loading {_names(self._settings)} …", highlight=False, markup=False)

    def settled(self, fleet: Fleet, endpoints: Sequence[Endpoint], url: str) -> None:
        self._console.print()
        print_columns(self._console, model_rows(fleet.routes))
        for route in fleet.routes:
            if not route.ready and (reason := route.foremost.reason):
                self._console.print(f"{route.name}: {reason}", style="red", markup=False, highlight=False)
        self._console.print()
        print_columns(self._console, endpoint_rows(endpoints, {route.kind for route in fleet.routes}))
        if (line := curl(fleet, endpoints, url, keyed=bool(self._settings.keys))) is not None:
            self._console.print("\nTry it:", style="bold")
            # Plain and on one line, so that it can be pasted.
            self._console.print(line, soft_wrap=True, markup=False, highlight=False)


class LogAnnouncer:
    """The same as records of the log, a line each. Of a model that is not ready its worker has said why."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def listening(self, url: str) -> None:
        log.info("Listening on %s; loading %s", url, _names(self._settings))

    def settled(self, fleet: Fleet, endpoints: Sequence[Endpoint], url: str) -> None:
        served = ", ".join(route.name for route in fleet.routes if _served(route))
        log.info("Serving %s at %s", served or "no model", url)
        if (line := curl(fleet, endpoints, url, keyed=bool(self._settings.keys))) is not None:
            log.info("Try it: %s", line)


def model_rows(routes: Collection[Route]) -> list[list[Cell]]:
    head: list[Cell] = [Text(name, style="bold") for name in ("model", "kind", "state", "slots", "seconds")]
    return [head, *map(_model, routes)]


def _model(route: Route) -> list[Cell]:
    """`seconds`: what its load took."""
    replica = route.foremost
    name = AT_FIRST_USE if _waits(route) else replica.state.value
    state = Text(name, style=STATE_COLOURS.get(replica.state, "yellow"))
    slots, seconds = "–", "–"
    if replica.ready is not None:
        slots, seconds = str(route.admission.total), f"{replica.ready.load_seconds:.1f}"
    return [route.name, route.kind, state, f"{slots:>5}", f"{seconds:>7}"]


def endpoint_rows(endpoints: Sequence[Endpoint], kinds: Collection[str]) -> list[list[Cell]]:
    """Those that can be used with models of `kinds`; the ones that need no model come last."""
    shown = [each for each in endpoints if each.line is not None and (each.kind is None or each.kind in kinds)]
    rows: dict[tuple[str, str], list[str]] = {}
    for each in sorted(shown, key=lambda each: each.kind is None):
        rows.setdefault((each.method, each.line or ""), []).append(each.path)
    return [[method, ", ".join(paths), line] for (method, line), paths in rows.items()]


def curl(fleet: Fleet, endpoints: Sequence[Endpoint], url: str, *, keyed: bool) -> str | None:
    """One line that asks a model something: the first endpoint's that has an example and a model."""
    served = {route.kind: route.name for route in reversed(fleet.routes) if _served(route)}
    for each in endpoints:
        if each.example is not None and each.kind in served:
            body = json.dumps({"model": served[each.kind], **each.example})
            key = ' -H "Authorization: Bearer $GATEWAY_API_KEY"' if keyed else ""
            return f"curl {url}{each.path}{key} -H 'Content-Type: {JSON}' -d '{body}'"
    return None


def _served(route: Route) -> bool:
    return route.ready or _waits(route)


def _waits(route: Route) -> bool:
    """Whether its first request will load it."""
    return not route.settings.preload and route.foremost.state is State.STOPPED


def _names(settings: Settings) -> str:
    return ", ".join(model.name for model in settings.models if model.preload) or "each model at its first use"
