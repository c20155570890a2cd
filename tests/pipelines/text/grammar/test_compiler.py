"""What is refused of a grammar, by whose name, and how a model's tokens are read."""

import json
from time import perf_counter
from typing import Any

import pytest

from pipelines.base import InvalidRequest
from pipelines.messages.grammar import Grammar, GrammarKind
from pipelines.text.grammar import compiler
from pipelines.text.grammar.compiler import Grammars
from pipelines.text.grammar.schema import UNSUPPORTED, read_schema
from tests.pipelines.text.fakes import EOS, VOCAB, ByteTokenizer


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(ByteTokenizer(), VOCAB, frozenset({EOS}))


def refusal(grammars: Grammars, kind: GrammarKind, text: Any, *, strict: bool = False) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refused:
        grammars.compile(Grammar(kind, text if isinstance(text, str) else json.dumps(text), strict), "schema")
    return refused.value


STRING, NUMBER = {"type": "string"}, {"type": "number"}


def of(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}}


@pytest.mark.parametrize("keyword", sorted(UNSUPPORTED))
def test_a_keyword_that_can_not_be_enforced_is_named_with_its_path(grammars: Grammars, keyword: str) -> None:
    error = refusal(grammars, "json_schema", of({"anyOf": [STRING, {"type": "array", keyword: True}]}))
    assert error.param == f"schema.properties.a.anyOf[1].{keyword}"
    assert keyword in error.message


@pytest.mark.parametrize(
    ("schema", "param", "words"),
    [
        (of({"type": "string", "format": "iri"}), "schema.properties.a.format", "'iri'"),
        (of({"type": "integer", "multipleOf": 99991}), "schema.properties.a.multipleOf", "1000"),
        (of(3), "schema.properties.a", "schema"),
        ({"items": {"$defs": {"b": {"not": {}}}}}, "schema.items.$defs.b.not", "not"),
        ({"additionalProperties": {"if": {}}}, "schema.additionalProperties.if", "if"),
        ({"prefixItems": [{}, {"contains": {}}]}, "schema.prefixItems[1].contains", "contains"),
        (of({"oneOf": [NUMBER, {"type": "integer"}]}), "schema", "oneOf"),
        (of({"type": "string", "pattern": "(?=a)b"}), "schema", "look-around"),
        (of({"$ref": "#/$defs/none"}), "schema", "/$defs/none"),
        (of({"$ref": "http://example.com/schema"}), "schema", "http://example.com/schema"),
        (of({"type": "word"}), "schema", "word"),
        (of({"minLength": "x"}), "schema", "minLength"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "schema", "minimum"),
        ({"allOf": [STRING, NUMBER]}, "schema", "incompatible"),
        (of({"enum": ["a", "x" * 5000]}), "schema.properties.a", "4096"),
        ("{", "schema", "read"),
        ("[]", "schema", "object"),
        ('{"enum": ["\\ud800"]}', "schema", "read"),
        ('{"const": 1e999}', "schema", "range"),
        ('{"const": NaN}', "schema", "read"),
        ('{"items":' * 500 + "{}" + "}" * 500, "schema" + ".items" * 101, "nested"),
        ('{"a":' * 40_000 + "1" + "}" * 40_000, "schema", "recursion"),
    ],
)
def test_a_schema_that_can_not_be_kept_to_is_refused(grammars: Grammars, schema: Any, param: str, words: str) -> None:
    error = refusal(grammars, "json_schema", schema)
    assert error.param == param
    assert words in error.message
    assert "\n" not in error.message


@pytest.mark.parametrize(
    "schema",
    [
        of({"type": "array", "uniqueItems": False}),
        of({**STRING, "title": "A", "description": "d", "default": "x", "examples": ["y"], "deprecated": True}),
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "http://x/y", **of(STRING), "x-order": 3},
        {**of(STRING), "x-guidance": {"lenient": True, "whitespace_flexible": True, "nonsense": 1}},
        {"properties": {"not": STRING, "if": {"enum": [{"not": 1}]}}, "required": ["not"]},  # names, not keywords
    ],
)
def test_what_asks_for_nothing_is_taken(grammars: Grammars, schema: Any) -> None:
    grammars.compile(Grammar("json_schema", json.dumps(schema)), "schema")


def strict(**changes: Any) -> dict[str, Any]:
    return {**of(STRING), "required": ["a"], "additionalProperties": False, **changes}


@pytest.mark.parametrize(
    ("schema", "param"),
    [
        (STRING, "schema"),
        (strict(anyOf=[STRING]), "schema"),
        (strict(additionalProperties=True), "schema.additionalProperties"),
        ({**of(STRING), "required": ["a"]}, "schema.additionalProperties"),
        (strict(required=[]), "schema.required"),
        (strict(properties={"a": of(STRING)}), "schema.properties.a.additionalProperties"),
        (strict(properties={"a": {"allOf": [STRING]}}), "schema.properties.a.allOf"),
        (strict(properties={"a": {"oneOf": [STRING, NUMBER]}}), "schema.properties.a.oneOf"),
        (strict(properties={"a": {"enum": [*range(1001)]}}), "schema.properties.a"),
    ],
)
def test_strict_is_openais_subset(grammars: Grammars, schema: Any, param: str) -> None:
    error = refusal(grammars, "json_schema", schema, strict=True)
    assert error.param == param
    assert "strict" in error.message


def test_strict_takes_what_pydantic_makes() -> None:
    node = {"$ref": "#/$defs/node"}
    nodes = strict(properties={"a": {"anyOf": [node, {"type": "null"}], "description": "d"}}, title="Node")
    read_schema(json.dumps(strict(properties={"a": node}, **{"$defs": {"node": nodes}})), "schema", strict=True)


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("regex", "a{2", "repetition"),
        ("regex", "(?=a)b", "look-around"),
        ("regex", "(a|b)*a(a|b){1,1000}{1,1000}{1,1000}", ""),
        ("lark", "start: nothing", "nothing"),
        ("lark", 'start: %json {"type": "object"}', "%json"),
        ("lark", '{"grammars": [{"json_schema": {"not": {}}}]}', ""),
        ("lark", "A: " + " & ".join(f"/.*{chr(97 + i)}.{{{i}}}/" for i in range(16)) + "\nstart: A", "fuel"),
        ("gbnf", "root ::= (", "read"),
        ("gbnf", "root ::= " + "(" * 5000, "recursion"),
        ("gbnf", "root ::= " + '"a" ' * 10_000, "32768"),
        ("json_schema", {"allOf": [{**STRING, "pattern": f".*{chr(97 + i)}.{{{i}}}"} for i in range(20)]}, "patterns"),
        ("json_schema", {"allOf": [{"type": "integer", "multipleOf": each} for each in (97, 997, 7)]}, "multipleOf"),
        ("json_schema", {"properties": {f"property {i}": STRING for i in range(2000)}}, "items"),
        ("json_schema", {"enum": ["x" * 4000]}, ""),
    ],
)
def test_a_grammar_that_takes_too_much_is_refused_soon(
    grammars: Grammars, kind: GrammarKind, text: Any, words: str
) -> None:
    began = perf_counter()
    error = refusal(grammars, kind, text) if words else None
    if error is None:
        try:
            grammars.compile(Grammar(kind, text if isinstance(text, str) else json.dumps(text)), "schema")
        except InvalidRequest as refused:
            error = refused
    assert error is None or (error.param == "schema" and words in error.message)
    assert perf_counter() - began < 60  # the slowest would take hours without limits


def test_what_was_asked_for_last_is_kept(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "MAX_KEPT", 2)
    one, two, three = (Grammar("regex", text) for text in ("one", "two", "three"))
    first = grammars.compile(one, "")
    grammars.compile(two, "")
    assert grammars.compile(one, "") is first
    grammars.compile(three, "")
    assert [grammars.keeps(each) for each in (one, two, three)] == [True, False, True]


def test_a_model_without_an_end() -> None:
    endless = Grammars(ByteTokenizer(), VOCAB, frozenset())
    matcher = endless.compile(Grammar("regex", "ab"), "").start()
    assert matcher.consume_tokens(list(b"ab"))
    assert matcher.is_accepting()


class Spaced(ByteTokenizer):
    """Puts a space before a text's first word, and writes names as control tokens."""

    def encode(self, text: str, **options: Any) -> list[int]:
        return super().encode(" " + text, **options)


@pytest.mark.parametrize("text", ["word", " word", "<user>", "é"])
def test_forced_texts_are_cut_into_ordinary_tokens_that_spell_them(text: str) -> None:
    matcher = Grammars(Spaced(), VOCAB, frozenset({EOS})).compile(Grammar("choice", json.dumps([text])), "").start()
    assert matcher.compute_ff_tokens() == list(text.encode())
