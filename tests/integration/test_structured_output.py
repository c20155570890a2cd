"""The embedded model kept to schemas and grammars, through the whole system and the official client."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import Any, Literal

import httpx
import jsonschema
import pytest
from openai import BadRequestError, LengthFinishReasonError, OpenAI
from pydantic import BaseModel, Field

from tests.gateway.scripted_app import events

pytestmark = pytest.mark.requires_weights


def thing(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
    }


STRING, INTEGER, BOOLEAN = {"type": "string", "maxLength": 24}, {"type": "integer"}, {"type": "boolean"}
PLACE = thing(city=STRING, zip={"type": "string", "pattern": "^[0-9]{5}$"})
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {"node": thing(v={"enum": [1, 2]}, next={"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]})},
}
SCHEMAS: list[dict[str, Any]] = [
    thing(name=STRING, age={"type": "integer", "minimum": 0, "maximum": 150}),
    thing(person=thing(name=STRING, home=PLACE)),
    thing(colours={"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 3}),
    thing(pair={"type": "array", "prefixItems": [INTEGER, STRING], "items": False, "minItems": 2}),
    thing(answer={"anyOf": [BOOLEAN, {"type": "null"}, {"enum": ["maybe"]}]}),
    thing(shape={"oneOf": [thing(kind={"const": "dot"}), thing(kind={"const": "box"}, side=INTEGER)]}),
    thing(at={"type": "string", "format": "date-time"}, day={"type": "string", "format": "date"}),
    thing(mail={"type": "string", "format": "email", "maxLength": 40}),
    thing(id={"type": "string", "format": "uuid"}, ip={"type": "string", "format": "ipv4"}),
    thing(share={"type": "number", "minimum": 0, "maximum": 1}),
    thing(five={"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100}),
    thing(low={"type": "integer", "exclusiveMinimum": -5, "exclusiveMaximum": 5}),
    thing(code={"type": "string", "pattern": "^(abc|[x-z]{2,4})-\\d+$", "maxLength": 12}),
    thing(text={"type": "string", "minLength": 3, "maxLength": 10}),
    thing(a=BOOLEAN, b={"type": ["string", "null"], "maxLength": 8}, required=["a"]),
    {"type": "object", "additionalProperties": INTEGER, "maxProperties": 2},
    {"type": "object", "patternProperties": {"^k[0-9]$": BOOLEAN}, "additionalProperties": False},
    {"type": "array", "items": {"type": "array", "items": INTEGER, "maxItems": 2}, "maxItems": 3},
    {"allOf": [thing(a=INTEGER), {"properties": {"a": {"minimum": 3, "maximum": 20}}}]},
    {"enum": ["yes", "no", 3, None, {"deep": [1]}, 'quo"ted', "ü🦊"]},
    {"const": {"fixed": [1, "two", None]}},
    TREE,
    {"type": "integer"},
    {"type": "string", "maxLength": 12},
]


def ask(client: httpx.Client, model: str, content: str, **fields: Any) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 48, **fields}
    return client.post("/v1/chat/completions", json=body)


def formatted(schema: dict[str, Any]) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}}


def said(answer: httpx.Response) -> tuple[str, str]:
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    return choice["message"]["content"], choice["finish_reason"]


def test_whatever_ends_with_stop_validates(http_real: httpx.Client, model: str) -> None:
    def answer(number: int) -> tuple[str, str]:
        fields = formatted(SCHEMAS[number]) | {"temperature": number % 3 / 2, "seed": number}
        return said(ask(http_real, model, f"Give me an example, number {number}.", **fields))

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(answer, range(len(SCHEMAS))))
    ended = 0
    for schema, (text, reason) in zip(SCHEMAS, answers, strict=True):
        if reason == "stop":
            ended += 1
            jsonschema.validate(json.loads(text), schema, format_checker=jsonschema.FormatChecker())
    assert ended > len(SCHEMAS) * 2 / 3


def test_a_stream_is_the_whole_and_drafts_change_nothing(http_real: httpx.Client, model: str) -> None:
    asked = formatted(SCHEMAS[1]) | {"temperature": 0.8, "seed": 4, "logprobs": True, "top_logprobs": 2}
    whole = ask(http_real, model, "Where does Ada live?", **asked).json()["choices"][0]
    for fields in ({"stream": True, "speculation": False}, {"stream": True, "speculation": {"kind": "ngram"}}):
        streamed = events(ask(http_real, model, "Where does Ada live?", **asked, **fields).text)
        deltas = [each["choices"][0] for each in streamed if each != "[DONE]"]
        assert "".join(each["delta"].get("content") or "" for each in deltas) == whole["message"]["content"]
        entries = [entry for each in deltas for entry in (each.get("logprobs") or {"content": []})["content"]]
        assert entries == whole["logprobs"]["content"]
        assert deltas[-1]["finish_reason"] == whole["finish_reason"]


def test_choices_and_completions(http_real: httpx.Client, model: str) -> None:
    answer = ask(http_real, model, "Is water wet?", n=3, temperature=2.0, guided_choice=["yes, it is", "no"]).json()
    assert {each["message"]["content"] for each in answer["choices"]} <= {"yes, it is", "no"}
    body = {"model": model, "prompt": "The year is", "structured_outputs": {"regex": " (19|20)[0-9]{2}\\."}}
    choice = http_real.post("/v1/completions", json=body).json()["choices"][0]
    assert re.fullmatch(r" (19|20)[0-9]{2}\.", choice["text"])
    assert choice["finish_reason"] == "stop"
    assert isinstance(
        json.loads(said(ask(http_real, model, "Hi", **formatted({"type": "object", "maxProperties": 1})))[0]), dict
    )


def test_a_refusal_names_the_keyword_and_its_path(http_real: httpx.Client, model: str) -> None:
    answer = ask(http_real, model, "x", stream=True, **formatted(thing(a={"type": "array", "uniqueItems": True})))
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["param"] == "response_format.json_schema.schema.properties.a.uniqueItems"
    assert "uniqueItems" in error["message"]


class Mood(Enum):
    GOOD = "good"
    BAD = "bad"


class Pet(BaseModel):
    name: str = Field(max_length=16)
    kind: Literal["cat", "dog"]
    age: int | None = Field(ge=0, le=30)


class Owner(BaseModel):
    name: str = Field(max_length=16)
    mood: Mood
    pets: list[Pet] = Field(min_length=1, max_length=2)


def test_parse_of_the_official_client(openai_real: OpenAI, model: str) -> None:
    messages: list[Any] = [{"role": "user", "content": "Ann has a cat."}]
    parsed = openai_real.chat.completions.parse(model=model, messages=messages, response_format=Owner, seed=1)
    assert isinstance(parsed.choices[0].message.parsed, Owner)
    with openai_real.chat.completions.stream(
        model=model, messages=messages, response_format=Owner, seed=1, temperature=0
    ) as stream:
        for _ in stream:
            pass
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Owner)
    with pytest.raises(LengthFinishReasonError):
        openai_real.chat.completions.parse(model=model, messages=messages, response_format=Owner, max_tokens=3)

    class Anything(BaseModel):
        tags: set[str]

    with pytest.raises(BadRequestError, match="uniqueItems"):
        openai_real.chat.completions.parse(model=model, messages=messages, response_format=Anything)
