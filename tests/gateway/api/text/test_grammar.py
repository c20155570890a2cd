"""What a text has to keep to, as clients ask for it, and what is refused by which name."""

import json
from typing import Any

import msgspec
import pytest

from gateway.api.text import chat_request, completion_request
from gateway.api.text.chat_request import ChatRequest
from gateway.api.text.completion_request import CompletionRequest
from gateway.api.texts import decode_texts
from gateway.errors import ApiError
from pipelines.base import InvalidRequest, Ticket
from pipelines.messages.grammar import Grammar
from pipelines.messages.text import TextRequest
from tests.pipelines.text.fakes import create_pipeline

CHAT = msgspec.json.Decoder(ChatRequest)
COMPLETION = msgspec.json.Decoder(CompletionRequest)
SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"const": "ü"}}, "required": ["b", "a"]}
TEXT = '{"type":"object","properties":{"b":{"type":"integer"},"a":{"const":"ü"}},"required":["b","a"]}'


def chat(**fields: Any) -> TextRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    return chat_request.to_text_request(decode_texts(json.dumps(body).encode(), CHAT), "")


def completion(**fields: Any) -> TextRequest:
    return completion_request.to_text_request(
        decode_texts(json.dumps({"model": "m", "prompt": "hi", **fields}).encode(), COMPLETION), ""
    )


def formatted(**fields: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, **fields}}}


EXTENSIONS = [
    ({"structured_outputs": {"json": SCHEMA}}, "structured_outputs.json", Grammar("json_schema", TEXT)),
    ({"structured_outputs": {"json": TEXT}}, "structured_outputs.json", Grammar("json_schema", TEXT)),
    ({"structured_outputs": {"json_object": True}}, "structured_outputs.json_object", Grammar("json_object")),
    ({"structured_outputs": {"regex": "a+", "json": None}}, "structured_outputs.regex", Grammar("regex", "a+")),
    ({"structured_outputs": {"choice": ["a", "ü"]}}, "structured_outputs.choice", Grammar("choice", '["a","ü"]')),
    ({"structured_outputs": {"grammar": "start: /a/"}}, "structured_outputs.grammar", Grammar("lark", "start: /a/")),
    ({"structured_outputs": {"grammar": "root ::= x"}}, "structured_outputs.grammar", Grammar("gbnf", "root ::= x")),
    ({"guided_json": SCHEMA}, "guided_json", Grammar("json_schema", TEXT)),
    ({"guided_json": TEXT}, "guided_json", Grammar("json_schema", TEXT)),
    ({"guided_regex": "a+"}, "guided_regex", Grammar("regex", "a+")),
    ({"guided_choice": ["a", "b"]}, "guided_choice", Grammar("choice", '["a","b"]')),
    ({"guided_grammar": "root ::= x"}, "guided_grammar", Grammar("gbnf", "root ::= x")),
]


@pytest.mark.parametrize("ask", [chat, completion])
@pytest.mark.parametrize(("fields", "name", "grammar"), EXTENSIONS)
def test_vllms_fields(ask: Any, fields: dict[str, Any], name: str, grammar: Grammar) -> None:
    request = ask(**fields)
    assert (request.sampling.grammar, request.called("grammar")) == (grammar, name)


@pytest.mark.parametrize(
    ("fields", "name", "grammar"),
    [
        ({"response_format": None}, "grammar", None),
        ({"response_format": {"type": "text"}}, "grammar", None),
        ({"response_format": {"type": "json_object"}}, "response_format.type", Grammar("json_object")),
        (formatted(), "response_format.json_schema.schema", Grammar("json_schema", TEXT)),
        (formatted(strict=False, description=None), "response_format.json_schema.schema", Grammar("json_schema", TEXT)),
        (formatted(strict=True), "response_format.json_schema.schema", Grammar("json_schema", TEXT, strict=True)),
    ],
)
def test_openais_response_format(fields: dict[str, Any], name: str, grammar: Grammar | None) -> None:
    request = chat(**fields)
    assert (request.sampling.grammar, request.called("grammar")) == (grammar, name)


@pytest.mark.parametrize("ask", [chat, completion])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs.choice"),
        ({"structured_outputs": {"regexp": "a"}}, "structured_outputs.regexp"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern"),
        ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex"),
        ({"structured_outputs": {"regex": 3}}, "structured_outputs.regex"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": ["a", ""]}}, "structured_outputs.choice[1]"),
        ({"structured_outputs": {"choice": "a"}}, "structured_outputs.choice"),
        ({"structured_outputs": {"json": [1]}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": {"enum": ["\ud800"]}}}, "structured_outputs.json.enum[0]"),
        ({"guided_json": True}, "guided_json"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
        ({"guided_regex": "a", "structured_outputs": {"regex": "a"}}, "guided_regex"),
        ({"guided_choice": ["x" * 4000] * 100}, "guided_choice"),
        ({"guided_json": {"enum": ["x" * 2**19]}}, "guided_json"),
        ({"guided_decoding_backend": "outlines"}, "guided_decoding_backend"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
    ],
)
def test_refusals_name_the_field(ask: Any, fields: dict[str, Any], param: str) -> None:
    check(ask, fields, param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {}}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_object", "schema": {}}}, "response_format.schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, "response_format.json_schema"),
        (formatted(name="two words"), "response_format.json_schema.name"),
        (formatted(name="n" * 65), "response_format.json_schema.name"),
        (formatted(schema=[]), "response_format.json_schema.schema"),
        (formatted(schema=TEXT), "response_format.json_schema.schema"),
        (formatted(strict="yes"), "response_format.json_schema.strict"),
        (formatted(stricter=True), "response_format.json_schema.stricter"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ({**formatted(), "structured_outputs": {"json": {}}}, "structured_outputs.json"),
    ],
)
def test_refusals_of_a_response_format(fields: dict[str, Any], param: str) -> None:
    check(chat, fields, param)


def check(ask: Any, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        ask(**fields)
    assert refused.value.status == 400
    assert (refused.value.param or "").startswith(param)
    assert (refused.value.param or "") in refused.value.message


def test_a_response_format_is_no_field_of_completions() -> None:
    check(completion, {"response_format": {"type": "json_object"}}, "response_format")


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (chat(**formatted(schema={"items": {"not": {}}})), "response_format.json_schema.schema.items.not"),
        (chat(**formatted(strict=True)), "response_format.json_schema.schema.additionalProperties"),
        (chat(guided_json={"items": {"not": {}}}), "guided_json.items.not"),
        (completion(structured_outputs={"json": '{"uniqueItems": true}'}), "structured_outputs.json.uniqueItems"),
        (completion(structured_outputs={"regex": "("}), "structured_outputs.regex"),
        (completion(guided_grammar="start: nothing"), "guided_grammar"),
    ],
)
def test_what_only_the_worker_finds_has_the_clients_name_too(request_: TextRequest, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        create_pipeline().prepare(Ticket("r", "interactive", 0.0), request_)
    assert refused.value.param == param
