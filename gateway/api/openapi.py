"""The schema at `/schema/openapi.json`, and a page about it that loads nothing from elsewhere."""

from collections.abc import Sequence
from html import escape
from typing import Annotated, Any

import msgspec
from litestar import Request
from litestar.datastructures import State
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin, OpenAPIRenderPlugin
from litestar.openapi.spec import Components, License, SecurityScheme
from msgspec import Meta, Raw, Struct

from gateway import __version__
from gateway.api import statuses as answers
from gateway.api.audio.request import TranscriptionForm
from gateway.api.embeddings.request import EmbeddingsRequest
from gateway.api.embeddings.rerank import RERANK_PATHS, RerankBody, TextsBody
from gateway.api.images.request import EditForm, GenerationBody
from gateway.api.text.chat_request import ChatRequest
from gateway.api.text.completion_request import CompletionRequest

# Path -> the Struct that is decoded there.
BODIES: dict[str, type[Struct]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/embeddings": EmbeddingsRequest,
    **dict.fromkeys(RERANK_PATHS, RerankBody),
    "/v1/images/generations": GenerationBody,
}

# Path -> another one that is taken there as well.
OTHER_BODIES: dict[str, type[Struct]] = dict.fromkeys(RERANK_PATHS, TextsBody)

# The same for forms, with the names of the files that belong to them; one that is marked "?" may be left out.
FORMS: dict[str, tuple[type[Struct], tuple[str, ...]]] = {
    "/v1/audio/transcriptions": (TranscriptionForm, ("file",)),
    "/v1/audio/translations": (TranscriptionForm, ("file",)),
    "/v1/images/edits": (EditForm, ("image", "mask?")),
}

# What is refused although its type is right, where a schema can say so; by the field's name.
_SAID: dict[str, object] = {"minLength": 1}
_TEXTS: dict[str, object] = {**_SAID, "minItems": 1, "items": {**_SAID, "minItems": 1}}
_NARROWED: dict[str, dict[str, object]] = {
    "model": _SAID,
    "messages": {"minItems": 1},
    "logit_bias": {"propertyNames": {"pattern": "^[0-9]+$"}},
    "input": _TEXTS,
    "query": _SAID,
    "size": {"pattern": "^(auto|[1-9][0-9]{0,4}x[1-9][0-9]{0,4})$"},
}
_NARROWED_OF: dict[type[Struct], dict[str, dict[str, object]]] = {
    GenerationBody: {"prompt": _SAID},
    EditForm: {"prompt": _SAID},
}

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
        self._page = self._page or render_page(completed(openapi_schema)).encode()
        return self._page


class JsonPlugin(JsonRenderPlugin):
    """The schema itself, complete."""

    def __init__(self) -> None:
        super().__init__()
        self._schema = b""

    def render(self, request: Request[object, object, State], openapi_schema: dict[str, object]) -> bytes:
        self._schema = self._schema or msgspec.json.encode(completed(openapi_schema))
        return self._schema


def openapi_config() -> OpenAPIConfig:
    return OpenAPIConfig(
        title="Multimodal gateway",
        version=__version__,
        description="OpenAI-compatible inference over local models.",
        license=License(name="Apache-2.0", identifier="Apache-2.0"),
        path="/schema",
        components=Components(security_schemes={"key": SecurityScheme(type="http", scheme="bearer")}),
        security=[{"key": []}],
        use_handler_docstrings=True,
        render_plugins=[PagePlugin(), JsonPlugin()],
    )


def completed(schema: dict[str, object]) -> dict[str, object]:
    """The schema with BODIES, FORMS and all that may be answered: those endpoints decode and encode themselves, so
    Litestar does not see it."""
    types: dict[object, object] = {body: _describable(body) for body in (*BODIES.values(), *OTHER_BODIES.values())}
    types |= {form: _describable(form, files) for form, files in FORMS.values()}
    types |= {each: each for each in answers.types()}
    found, components = msgspec.json.schema_components(types.values(), ref_template="#/components/schemas/{name}")
    references = dict(zip(types, found, strict=True))
    bodies = [(path, "application/json", body) for path, body in BODIES.items()]
    bodies += [(path, "multipart/form-data", form) for path, (form, _) in FORMS.items()]
    paths = {path: dict(_table(item)) for path, item in _table(schema.get("paths")).items()}
    for path, media_type, of in bodies:
        if path in paths:
            of_path: dict[str, object] = references[of]
            if path in OTHER_BODIES:
                of_path = {"anyOf": [of_path, references[OTHER_BODIES[path]]]}
            body = {"required": True, "content": {media_type: {"schema": of_path}}}
            paths[path]["post"] = {**_table(paths[path].get("post")), "requestBody": body}
    for path, item in paths.items():
        for method, operation in item.items():
            told = _table(operation)
            item[method] = {**told, "responses": answers.answers(path, told, references)}
    known = _table(schema.get("components"))
    schemas = {**_table(known.get("schemas")), **components}
    return {**schema, "paths": paths, "components": {**known, "schemas": schemas, "responses": answers.components()}}


def _describable(body: type[Struct], files: Sequence[str] = ()) -> type[Struct]:
    """The same fields and `files`, where those that are taken as raw JSON may be anything: msgspec can't write their
    defaults."""
    fields: list[tuple[str, object] | tuple[str, object, object]] = [
        (name[:-1], _File | None, None) if name.endswith("?") else (name, _File) for name in files
    ]
    narrowed = _NARROWED | _NARROWED_OF.get(body, {})
    for field in msgspec.structs.fields(body):
        name = field.encode_name
        kind: object = field.type
        if name in narrowed:
            kind = Annotated[field.type, Meta(extra_json_schema=narrowed[name])]
        if field.type is Raw:
            fields.append((name, Any, None))
        elif field.required:
            fields.append((name, kind))
        else:
            fields.append((name, kind, field.default))
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
