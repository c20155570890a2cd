"""Holds every answer that leaves a gateway under test to what its schema declares."""

import json
import re
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from litestar import Litestar

from gateway.api.openapi import completed
from gateway.app import create_app
from gateway.asgi import App, Message, Receive, Scope, Send, header
from gateway.config.settings import ModelSettings, Settings
from gateway.requests.fleet import Fleet
from metrics.registry import Registry
from pipelines.kinds import metrics_by_kind

MAX_BODY = 64 * 1024  # larger ones are not validated: it takes long, and they are lists of the same


class Undeclared(AssertionError):
    pass


class Declared:
    """An application whose answers are declared: operation, status, content type, and JSON by its schema. `check`
    raises what was not."""

    def __init__(self, app: App, schema: dict[str, Any]) -> None:
        self._app = app
        self._schema = schema
        self.found: list[str] = []
        self.seen: set[tuple[str, str, int, str]] = set()
        self._operations = [
            (re.compile(re.sub(r"\\\{\w+\\\}", "[^?]+", re.escape(path))), path) for path in schema["paths"]
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start: Message = {}
        body = bytearray()

        async def watched(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
            elif message["type"] == "http.response.body":
                body.extend(message.get("body", b"")[: MAX_BODY + 1 - len(body)])
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            if start:
                self._look(scope["method"], scope["path"], start, bytes(body))

    def check(self) -> None:
        if self.found:
            raise Undeclared("\n".join(self.found))

    def _look(self, method: str, path: str, start: Message, body: bytes) -> None:
        status: int = start["status"]
        if status == 499:  # nobody reads it
            return
        template = next((name for pattern, name in self._operations if pattern.fullmatch(path)), None)
        operation = self._schema["paths"].get(template, {}).get("get" if method == "HEAD" else method.lower())
        if operation is None:  # no operation of ours: a refusal, or one of Litestar's
            return
        content_type = (header({"headers": start["headers"]}, b"content-type") or b"").decode().partition(";")[0]
        where = f"{method} {template}: {status} {content_type}"
        self.seen.add((method, template or "", status, content_type))
        declared = self._resolved(operation["responses"].get(str(status)))
        if declared is None or content_type not in declared["content"]:
            self.found.append(f"{where} is not declared")
        elif content_type == "application/json" and method != "HEAD" and len(body) <= MAX_BODY:
            try:
                self._validator(json.dumps(declared["content"][content_type]["schema"])).validate(json.loads(body))
            except (ValidationError, ValueError) as error:
                self.found.append(f"{where}: {str(error)[:500]}\n{body[:500]!r}")

    def _resolved(self, node: Any) -> Any:
        if node is not None and "$ref" in node:
            return self._schema["components"]["responses"][node["$ref"].rpartition("/")[2]]
        return node

    @cache  # noqa: B019  (lives as long as the schema)
    def _validator(self, schema: str) -> Draft202012Validator:
        return Draft202012Validator({**json.loads(schema), "components": self._schema["components"]})


@cache
def schema_of_all() -> dict[str, Any]:
    """The same for every application."""
    settings = Settings(models=[ModelSettings(name="any", source="fake:", kind="text", pipeline="none:None")])
    registry = Registry(metrics_by_kind())
    app = create_app(settings, Fleet(settings, registry), registry)
    found: dict[str, Any] = json.loads(json.dumps(completed(app.openapi_schema.to_schema(), app.state.endpoints)))
    return found


def declared(app: Litestar) -> Declared:
    """The application watched from now on: put around all its middleware."""
    if isinstance(app.asgi_handler, Declared):
        return app.asgi_handler
    watched = Declared(app.asgi_handler, schema_of_all())  # type: ignore[arg-type]
    app.asgi_handler = watched  # type: ignore[assignment]
    return watched
