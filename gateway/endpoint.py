"""What a route declares of itself. Whatever else knows about routes (limits, keys, the log, the schema, the start
screen) reads it here and lists no path."""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Literal

from msgspec import Struct

JSON, EVENTS, TEXT = "application/json", "text/event-stream", "text/plain"

Method = Literal["GET", "POST", "WS"]  # WS: a WebSocket's handshake
# open: to everyone; metrics: to whoever may read the metrics, which can have a key of their own.
Access = Literal["open", "key", "metrics"]
Bodies = Mapping[str, Sequence[object]]  # content type -> one of these; `str` and `bytes` are text and a file

_PARAMETER = re.compile(r"\{\w+(:\w+)?\}")


class Incomplete(TypeError):
    """A route does not say all that is asked of it."""


class JsonBody(Struct, frozen=True):
    """One document, read into memory: `max_body_bytes` at most."""

    of: type[Struct]
    other: type[Struct] | None = None  # is taken as well


class FormBody(Struct, frozen=True):
    """A multipart form with files, which are written to the spool as they come: `max_upload_bytes` at most."""

    of: type[Struct]  # its fields
    files: tuple[str, ...]
    optional_files: tuple[str, ...] = ()

    @property
    def all_files(self) -> tuple[str, ...]:
        return self.files + self.optional_files


class Endpoint(Struct, frozen=True, kw_only=True, dict=True):
    """One operation. Raises Incomplete where it does not say enough."""

    method: Method
    path: str  # as Litestar has it, with parameters such as {name:str}
    aliases: tuple[str, ...] = ()  # the same under other paths
    kind: str | None  # of the model that it needs; None: it needs none
    line: str | None  # on the start screen, in a row with others of the same line; None: it is not shown
    summary: str = ""  # in the schema, which has no WebSockets

    body: JsonBody | FormBody | None = None
    answers: Bodies = {}  # what a 200 holds, where the handler's annotation does not say it
    others: Mapping[int, str] = {}  # further statuses with the same body, described
    example: Mapping[str, object] | None = None  # a body to try it with, but for its `model`

    access: Access = "key"
    hidden: str | None = None  # what its parameter, a secret, is like: nothing else is open, and no log shows it
    probe: bool = False  # asked every few seconds by what watches the server: it is logged as detail
    direct: bool = False  # called past the router: its handler takes the request alone and returns an ASGI response

    def __post_init__(self) -> None:
        match self.method:
            case "WS" if self.summary or self.body or self.answers or self.direct or self.access == "open":
                raise self.incomplete("a WebSocket wants a key and has no summary, body, answers or short way")
            case "GET" if self.body:
                raise self.incomplete("a GET has no body")
            case "POST" if not self.body:
                raise self.incomplete("what is its body?")
        if self.method != "WS" and not self.summary:
            raise self.incomplete("what does its schema say it does?")
        if self.hidden is not None and not _PARAMETER.search(self.path):
            raise self.incomplete("what is hidden is a parameter of its path")
        if self.example is not None and not (isinstance(self.body, JsonBody) and self.kind):
            raise self.incomplete("an example is a JSON body for a model")

    def incomplete(self, why: str) -> Incomplete:
        return Incomplete(f"{self.method} {self.path}: {why}")

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path, *self.aliases)

    def access_of(self, path: str) -> Access:
        """What a path as its client wrote it asks for: only what is spelled as it is here is open."""
        if self.access == "open" and not self._open.fullmatch(path):
            return "key"
        return self.access

    @property
    def shown_path(self) -> str:
        """Instead of one with a secret."""
        return _PARAMETER.sub("…", self.path)

    @cached_property
    def _open(self) -> re.Pattern[str]:
        return pattern(*self.paths, parameter=self.hidden)


def pattern(*paths: str, parameter: str | None = None) -> re.Pattern[str]:
    """What matches one of the paths. A parameter at its end may be empty, and may hold slashes."""
    return re.compile("|".join(_expression(path, parameter) for path in paths), re.DOTALL)


def without_types(path: str) -> str:
    """A path as schemas have it: /models/{model:path} -> /models/{model}."""
    return re.sub(r":\w+\}", "}", path)


def _expression(path: str, parameter: str | None) -> str:
    found, end = "", 0
    for each in _PARAMETER.finditer(path):
        anything = ".*" if each.end() == len(path) else "[^/]+"
        found += re.escape(path[end : each.start()]) + f"(?:{parameter or anything})"
        end = each.end()
    return found + re.escape(path[end:])
