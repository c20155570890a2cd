"""What `gateway serve` shows."""

import sys
from collections.abc import Collection

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gateway.backends.base import State
from gateway.fleet import Fleet
from gateway.routing import Route
from gateway.settings import Settings

# Kind of model that it needs (None: none), method, path, what it does.
ENDPOINTS = (
    ("text", "POST", "/v1/chat/completions", "chat, streamed or not"),
    ("text", "POST", "/v1/completions", "text completion"),
    ("embedding", "POST", "/v1/embeddings", "vectors of texts"),
    ("embedding", "POST", "/v1/rerank", "documents by relevance to a query"),
    ("audio", "POST", "/v1/audio/transcriptions", "speech to text; /v1/audio/translations: to English"),
    ("audio", "WS", "/v1/realtime, /v1/audio/stream", "live transcription"),
    ("image", "POST", "/v1/images/generations", "pictures of a text; /v1/images/edits: of a picture and a text"),
    (None, "GET", "/v1/models", "what is served"),
    (None, "GET", "/metrics, /v1/metrics", "Prometheus, JSON percentiles"),
    (None, "GET", "/health, /ready", "for probes; open"),
    (None, "GET", "/schema", "every operation and its fields"),
)

# Where the output is no terminal, there is no width to fit.
PLAIN_WIDTH = 140
STATE_COLOURS = {State.READY: "green", State.FAILED: "red"}


def make_console() -> Console:
    return Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH)


class ConsoleAnnouncer:
    """One line when the port is open, a table and a line of curl when the models are there."""

    def __init__(self, settings: Settings, console: Console | None = None) -> None:
        self._settings = settings
        self._console = console or make_console()

    def listening(self, url: str) -> None:
        names = ", ".join(model.name for model in self._settings.models)
        self._console.print(f"Listening on [bold]{url}[/bold]; loading {names} …", soft_wrap=True)

    def settled(self, fleet: Fleet, url: str) -> None:
        self._console.print(models_table(fleet))
        self._console.print(endpoints_table(url, {route.kind for route in fleet.routes}))
        if (line := curl(fleet, url, keyed=bool(self._settings.keys))) is not None:
            self._console.print("Try it:", style="bold")
            # Plain and on one line, so that it can be pasted.
            self._console.print(line, soft_wrap=True, markup=False, highlight=False)


def models_table(fleet: Fleet) -> Table:
    table = Table(title="Models", title_justify="left", title_style="bold")
    for column in ("model", "aliases", "kind", "state", "slots", "context", "loaded in", "runs on"):
        table.add_column(column, overflow="fold")
    for route in fleet.routes:
        table.add_row(*_row(route))
    return table


def _row(route: Route) -> list[str]:
    replica = route.foremost
    ready = replica.ready
    colour = STATE_COLOURS.get(replica.state, "yellow")
    state = f"[{colour}]{replica.state}[/{colour}]"
    head = [route.name, ", ".join(route.aliases) or "–", route.kind]
    if ready is None:
        return [*head, state, "–", "–", "–", escape(replica.reason or "")]
    runs_on = ", ".join(f"{name} {value}" for name, value in ready.details.items())
    context = str(ready.context_length) if ready.context_length else "–"
    return [*head, state, str(ready.slots), context, f"{ready.load_seconds:.1f} s", escape(runs_on)]


def endpoints_table(url: str, kinds: Collection[str]) -> Table:
    table = Table(title=f"Endpoints at {url}", title_justify="left", title_style="bold", show_header=False)
    for kind, method, path, what in ENDPOINTS:
        if kind is None or kind in kinds:
            table.add_row(method, path, what)
    return table


def curl(fleet: Fleet, url: str, *, keyed: bool) -> str | None:
    """One line that asks the first text model something."""
    name = next((route.name for route in fleet.routes if route.kind == "text" and route.ready), None)
    if name is None:
        return None
    key = ' -H "Authorization: Bearer $GATEWAY_API_KEY"' if keyed else ""
    body = f'{{"model": "{name}", "messages": [{{"role": "user", "content": "Say hello."}}], "max_tokens": 32}}'
    return f"curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' -d '{body}'"
