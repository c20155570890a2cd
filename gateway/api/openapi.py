"""The schema at `/schema/openapi.json`, and a page about it that loads nothing from elsewhere."""

from collections.abc import Iterable
from html import escape
from typing import Annotated, Any

import msgspec
from litestar import Request, Router
from litestar.datastructures import State
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin, OpenAPIRenderPlugin
from litestar.openapi.spec import Components, License, SecurityScheme
from msgspec import Meta, Raw, Struct

from gateway import __version__
from gateway.api import statuses as answers
from gateway.endpoint import JSON, Endpoint, FormBody, JsonBody, without_types
from gateway.http.endpoints import ENDPOINT

FORM = "multipart/form-data"
SCHEMA = Endpoint(
    method="GET",
    path="/schema",
    aliases=("/schema/openapi.json", "/schema/{path:str}"),
    kind=None,
    line="every operation and its fields",
    summary="This schema, as a page and as JSON",
)

_File = Annotated[str, Meta(extra_json_schema={"format": "binary"})]

_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem;color:#1b1f24;background:#fff}
h2{margin-top:2rem;text-transform:capitalize} code{font-size:.95em} li{margin:.3rem 0}
.method{display:inline-block;min-width:3.5rem;font-weight:600;color:#0550ae} .field{color:#57606a}
@media (prefers-color-scheme:dark){body{background:#0d1117;color:#e6edf3}.method{color:#79c0ff}.field{color:#9198a1}}
"""


class PagePlugin(OpenAPIRenderPlugin):
    """Every operation with its fields, as one plain page."""

    def __init__(self) -> None:
        super().__init__(path="/")
        self._page = b""

    def render(self, request: Request[object, object, State], openapi_schema: dict[str, object]) -> bytes:
        self._page = self._page or render_page(completed(openapi_schema, request.app.state.endpoints)).encode()
        return self._page


class JsonPlugin(JsonRenderPlugin):
    """The schema itself, complete."""

    def __init__(self) -> None:
        super().__init__()
        self._schema = b""

    def render(self, request: Request[object, object, State], openapi_schema: dict[str, object]) -> bytes:
        self._schema = self._schema or msgspec.json.encode(completed(openapi_schema, request.app.state.endpoints))
        return self._schema


def openapi_config() -> OpenAPIConfig:
    return OpenAPIConfig(
        title="Multimodal gateway",
        version=__version__,
        description="OpenAI-compatible inference over local models.",
        license=License(name="Apache-2.0", identifier="Apache-2.0"),
        openapi_router=Router(SCHEMA.path, route_handlers=[], include_in_schema=False, opt={ENDPOINT: SCHEMA}),
        components=Components(security_schemes={"key": SecurityScheme(type="http", scheme="bearer")}),
        security=[{"key": []}],
        use_handler_docstrings=True,
        render_plugins=[PagePlugin(), JsonPlugin()],
    )


def completed(schema: dict[str, object], endpoints: Iterable[Endpoint]) -> dict[str, object]:
    """The schema with the bodies and answers of the endpoints: they decode and encode themselves, so Litestar does not
    see it. In the order of the endpoints."""
    endpoints = tuple(endpoints)
    types: dict[object, object] = {of: each for endpoint in endpoints for of, each in _bodies(endpoint)}
    types |= {each: each for each in answers.types(endpoints)}
    found, components = msgspec.json.schema_components(types.values(), ref_template="#/components/schemas/{name}")
    references = dict(zip(types, found, strict=True))
    given = _table(schema.get("paths"))
    paths: dict[str, object] = {}
    for endpoint in endpoints:
        for path in map(without_types, endpoint.paths):
            operation = _table(_table(given.get(path)).get(endpoint.method.lower()))
            if operation:
                described = _with_body(operation, endpoint, references)
                described["responses"] = answers.answers(endpoint, operation, references)
                paths[path] = {**_table(paths.get(path)), endpoint.method.lower(): described}
    known = _table(schema.get("components"))
    schemas = {**_table(known.get("schemas")), **components}
    return {**schema, "paths": paths, "components": {**known, "schemas": schemas, "responses": answers.components()}}


def _bodies(endpoint: Endpoint) -> Iterable[tuple[type[Struct], type[Struct]]]:
    """What is decoded, and as what it is described."""
    match endpoint.body:
        case JsonBody(of=of, other=other):
            yield from ((each, _describable(each)) for each in (of, other) if each is not None)
        case FormBody(of=of) as form:
            yield of, _describable(of, form)


def _with_body(
    operation: dict[str, object], endpoint: Endpoint, references: dict[object, dict[str, object]]
) -> dict[str, object]:
    bodies = [references[of] for of, _ in _bodies(endpoint)]
    if not bodies:
        return dict(operation)
    schema = bodies[0] if len(bodies) == 1 else {"anyOf": bodies}
    media_type = JSON if isinstance(endpoint.body, JsonBody) else FORM
    return {**operation, "requestBody": {"required": True, "content": {media_type: {"schema": schema}}}}


def _describable(body: type[Struct], form: FormBody | None = None) -> type[Struct]:
    """The same fields and the files of its form. Those that are taken as raw JSON may be anything: msgspec can't write
    their defaults."""
    fields: list[tuple[str, object] | tuple[str, object, object]] = []
    if form is not None:
        fields += ((name, _File) for name in form.files)
        fields += ((name, _File | None, None) for name in form.optional_files)
    for field in msgspec.structs.fields(body):
        name = field.encode_name
        if field.type is Raw:
            fields.append((name, Any, None))
        elif field.required:
            fields.append((name, field.type))
        else:
            fields.append((name, field.type, field.default))
    fields.sort(key=len)  # what is required comes first
    return msgspec.defstruct(body.__name__, fields, kw_only=True, forbid_unknown_fields=True)


def render_page(schema: dict[str, object]) -> str:
    info = _table(schema.get("info"))
    title = escape(f"{info.get('title')} {info.get('version')}")
    groups: dict[str, list[str]] = {}
    for path, item in _table(schema.get("paths")).items():
        for method, value in _table(item).items():
            operation = _table(value)
            tags = operation.get("tags")
            tag = str(tags[0]) if isinstance(tags, list) and tags else "other"
            groups.setdefault(tag, []).append(_operation(schema, method, path, operation))
    sections = "".join(f"<h2>{escape(tag)}</h2><ul>{''.join(groups[tag])}</ul>" for tag in sorted(groups))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{_STYLE}</style><h1>{title}</h1><p>{escape(str(info.get('description', '')))} "
        f'Schema: <a href="schema/openapi.json">openapi.json</a></p>{sections}</html>'
    )


def _operation(schema: dict[str, object], method: str, path: str, operation: dict[str, object]) -> str:
    summary = escape(str(operation.get("summary", "")))
    fields = ", ".join(f"<code>{escape(name)}</code>" for name in _body_fields(schema, operation))
    line = f'<span class="method">{escape(method.upper())}</span> <code>{escape(path)}</code> {summary}'
    return f"<li>{line}<br><span class=field>{fields}</span></li>" if fields else f"<li>{line}</li>"


def _body_fields(schema: dict[str, object], operation: dict[str, object]) -> list[str]:
    """The names of the request body's top-level fields."""
    content = _table(_table(operation.get("requestBody")).get("content"))
    names: dict[str, None] = {}
    for media in content.values():
        body = _table(_table(media).get("schema"))
        bodies = body.get("anyOf")
        for each in map(_table, bodies if isinstance(bodies, list) else [body]):
            if isinstance(reference := each.get("$ref"), str):
                each = _resolve(schema, reference)
            names.update(dict.fromkeys(_table(each.get("properties"))))
    return list(names)


def _resolve(schema: dict[str, object], reference: str) -> dict[str, object]:
    node = schema
    for step in reference.removeprefix("#/").split("/"):
        node = _table(node.get(step))
    return node


def _table(node: object) -> dict[str, object]:
    return node if isinstance(node, dict) else {}
