"""What `gateway serve` shows: a screen on a terminal, lines in a log."""

import logging
import sys
from collections.abc import Collection

from rich.console import Console
from rich.text import Text

from gateway.backends.base import State
from gateway.cli.columns import Cell, print_columns
from gateway.config.settings import Settings
from gateway.requests.fleet import Fleet
from gateway.requests.routing import Route
from gateway.serve import Announcer

log = logging.getLogger("gateway")

# Kind of model that it needs (None: none), method, path, what it does.
ENDPOINTS = (
    ("text", "POST", "/v1/chat/completions", "chat, streamed or not"),
    ("text", "POST", "/v1/completions", "text completion"),
    ("embedding", "POST", "/v1/embeddings", "vectors of texts and pictures"),
    ("embedding", "POST", "/v1/rerank", "documents by relevance to a query"),
    ("audio", "POST", "/v1/audio/transcriptions", "speech to text"),
    ("audio", "POST", "/v1/audio/translations", "speech to English text"),
    ("audio", "WS", "/v1/realtime, /v1/audio/stream", "live transcription"),
    ("image", "POST", "/v1/images/generations", "pictures of a text"),
    ("image", "POST", "/v1/images/edits", "pictures of a picture and a text"),
    (None, "GET", "/v1/models", "what is served, and how it runs"),
    (None, "GET", "/metrics, /v1/metrics", "for Prometheus; percentiles as JSON"),
    (None, "GET", "/health, /ready", "for probes; open"),
    (None, "GET", "/schema", "every operation and its fields"),
)

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

    def settled(self, fleet: Fleet, url: str) -> None:
        self._console.print()
        print_columns(self._console, model_rows(fleet.routes))
        for route in fleet.routes:
            if not route.ready and (reason := route.foremost.reason):
                self._console.print(f"{route.name}: {reason}", style="red", markup=False, highlight=False)
        self._console.print()
        print_columns(self._console, endpoint_rows({route.kind for route in fleet.routes}))
        if (line := curl(fleet, url, keyed=bool(self._settings.keys))) is not None:
            self._console.print("\nTry it:", style="bold")
            # Plain and on one line, so that it can be pasted.
            self._console.print(line, soft_wrap=True, markup=False, highlight=False)


class LogAnnouncer:
    """The same as records of the log, a line each. Of a model that is not ready its worker has said why."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def listening(self, url: str) -> None:
        log.info("Listening on %s; loading %s", url, _names(self._settings))

    def settled(self, fleet: Fleet, url: str) -> None:
        served = ", ".join(route.name for route in fleet.routes if _served(route))
        log.info("Serving %s at %s", served or "no model", url)
        if (line := curl(fleet, url, keyed=bool(self._settings.keys))) is not None:
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


def endpoint_rows(kinds: Collection[str]) -> list[list[Cell]]:
    return [[method, path, what] for kind, method, path, what in ENDPOINTS if kind is None or kind in kinds]


def curl(fleet: Fleet, url: str, *, keyed: bool) -> str | None:
    """One line that asks the first text model something."""
    name = next((route.name for route in fleet.routes if route.kind == "text" and _served(route)), None)
    if name is None:
        return None
    key = ' -H "Authorization: Bearer $GATEWAY_API_KEY"' if keyed else ""
    body = f'{{"model": "{name}", "messages": [{{"role": "user", "content": "Say hello."}}], "max_tokens": 32}}'
    return f"curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' -d '{body}'"


def _served(route: Route) -> bool:
    return route.ready or _waits(route)


def _waits(route: Route) -> bool:
    """Whether its first request will load it."""
    return not route.settings.preload and route.foremost.state is State.STOPPED


def _names(settings: Settings) -> str:
    return ", ".join(model.name for model in settings.models if model.preload) or "each model at its first use"
