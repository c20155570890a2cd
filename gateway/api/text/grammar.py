"""What a text has to keep to: OpenAI's `response_format`, and the fields that vLLM's clients send."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from gateway.errors import bad_request
from pipelines.messages.grammar import MAX_GRAMMAR, ChoiceTexts, Grammar, GrammarKind, GrammarText
from pipelines.messages.sampling import SamplingFields

SchemaName = Annotated[str, Meta(pattern="^[a-zA-Z0-9_-]{1,64}$")]
# An object, or for vLLM's fields its JSON text.
Schema = dict[str, Any]
SchemaOrText = Schema | GrammarText


class JsonSchema(Struct, frozen=True, forbid_unknown_fields=True):
    name: SchemaName
    schema: Schema
    strict: bool | None = None  # it must be of OpenAI's subset; it is kept to either way
    description: str | None = None  # for people


class TextFormat(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """Anything."""


class JsonObjectFormat(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="json_object"):
    """Any JSON object."""


class JsonSchemaFormat(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="json_schema"):
    json_schema: JsonSchema


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


class StructuredOutputs(Struct, frozen=True, forbid_unknown_fields=True):
    """One of these."""

    json: SchemaOrText | None = None
    json_object: bool | None = None
    regex: GrammarText | None = None  # of the whole text
    choice: ChoiceTexts | None = None
    grammar: GrammarText | None = None  # Lark, or GBNF where it has '::='


class GrammarFields(SamplingFields, frozen=True, kw_only=True):
    """Fields of both text endpoints."""

    structured_outputs: StructuredOutputs | None = None
    # vLLM's older names of the same.
    guided_json: SchemaOrText | None = None
    guided_regex: GrammarText | None = None
    guided_choice: ChoiceTexts | None = None
    guided_grammar: GrammarText | None = None


def grammar(body: GrammarFields, form: ResponseFormat | None = None) -> tuple[Grammar | None, dict[str, str]]:
    """The one that is asked for, and its name as `pipelines.messages.names` keeps them. Raises ApiError (400), also
    where two are asked for."""
    asked = body.structured_outputs or StructuredOutputs()
    older = StructuredOutputs(
        json=body.guided_json, regex=body.guided_regex, choice=body.guided_choice, grammar=body.guided_grammar
    )
    forms = [
        _format(form),
        *((f"structured_outputs.{name}", made) for name, made in _of(asked)),
        *((f"guided_{name}", made) for name, made in _of(older)),
    ]
    found = [(field, made) for field, made in forms if made is not None]
    if body.structured_outputs is not None and not any(field.startswith("structured_outputs.") for field, _ in found):
        legal = ", ".join(StructuredOutputs.__struct_fields__)
        raise bad_request("structured_outputs", f"'structured_outputs' must have one of {legal}.")
    if len(found) > 1:
        raise bad_request(found[1][0], f"{found[0][0]!r} and {found[1][0]!r} contradict each other; send one of them.")
    for field, made in found:
        if len(made.text) > MAX_GRAMMAR:
            raise bad_request(field, f"{field!r} is too long: it may have {MAX_GRAMMAR} characters.")
        return made, {"grammar": field}
    return None, {}


def _format(form: ResponseFormat | None) -> tuple[str, Grammar | None]:
    match form:
        case JsonObjectFormat():
            return "response_format.type", Grammar("json_object")
        case JsonSchemaFormat(json_schema=asked):
            return "response_format.json_schema.schema", _schema(asked.schema, strict=bool(asked.strict))
        case _:
            return "response_format", None


def _of(fields: StructuredOutputs) -> list[tuple[str, Grammar | None]]:
    kind: GrammarKind = "gbnf" if "::=" in (fields.grammar or "") else "lark"
    return [
        ("json", None if fields.json is None else _schema(fields.json)),
        ("json_object", Grammar("json_object") if fields.json_object else None),
        ("regex", None if fields.regex is None else Grammar("regex", fields.regex)),
        ("choice", None if fields.choice is None else Grammar("choice", msgspec.json.encode(fields.choice).decode())),
        ("grammar", None if fields.grammar is None else Grammar(kind, fields.grammar)),
    ]


def _schema(schema: SchemaOrText, *, strict: bool = False) -> Grammar:
    text = schema if isinstance(schema, str) else msgspec.json.encode(schema).decode()
    return Grammar("json_schema", text, strict)
