"""Texts that keep to a grammar, over a small model that would say anything: what they are and where they end, whatever
else is asked for and whatever else runs."""

import json
import re
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from metrics.definitions import text as metrics
from pipelines.messages.frames import Failed
from pipelines.messages.grammar import Grammar
from pipelines.messages.text import TextRequest
from pipelines.text.drafts.ngram import SuffixIndex
from pipelines.text.pipeline import TextPipeline
from tests.pipelines.text.fakes import (
    BLOCK,
    EOS,
    USER,
    FakeDecoder,
    choices,
    create_pipeline,
    draft_freely,
    generate,
    only,
    request,
    run,
    submit,
)

PERSON = {
    "type": "object",
    "properties": {"name": {"enum": ["Ada", "Alan"]}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def pipeline() -> TextPipeline:
    """One for all that ask it one after the other: its tokens are read once."""
    return create_pipeline(FakeDecoder(context=512), kv_cache_tokens=512 * BLOCK)


def asked(kind: str, text: Any = "{}", prompt: str = "p", **fields: Any) -> TextRequest:
    grammar = Grammar(kind, text if isinstance(text, str) else json.dumps(text))
    return request(
        prompt,
        **{"temperature": 1.0, "seed": 3, "max_tokens": 200, "ignore_eos": False, "grammar": grammar, **fields},
    )


def said(pipeline: TextPipeline, *args: Any, **fields: Any) -> tuple[str, str]:
    choice = only(generate(pipeline, asked(*args, **fields)))
    return choice.text, choice.reason


# --- kinds of grammars ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("kind", "text", "keeps"),
    [
        ("json_schema", PERSON, lambda text: jsonschema.validate(json.loads(text), PERSON) is None),
        ("json_object", "{}", lambda text: isinstance(json.loads(text), dict)),
        ("regex", "[0-9]{3}-[a-f]+", lambda text: re.fullmatch("[0-9]{3}-[a-f]+", text)),
        ("regex", "^(ab|/)*$", lambda text: re.fullmatch("(ab|/)*", text)),
        ("choice", ["yes", "yesterday"], lambda text: text in ("yes", "yesterday")),
        ("choice", ['"[.*]\\\n', "é/ \t{}|", "🦊"], lambda text: text in ('"[.*]\\\n', "é/ \t{}|", "🦊")),
        ("lark", 'start: "a" B\nB: /[0-9]+/', lambda text: re.fullmatch("a[0-9]+", text)),
        ("gbnf", 'root ::= "a" digit+\ndigit ::= [0-9]', lambda text: re.fullmatch("a[0-9]+", text)),
    ],
)
def test_a_text_keeps_to_its_grammar(
    pipeline: TextPipeline, kind: str, text: Any, keeps: Callable[[str], object], seed: int
) -> None:
    answer, reason = said(pipeline, kind, text, seed=seed, max_tokens=400)
    assert reason == "length" or keeps(answer)


SCALARS = st.sampled_from(
    [
        {"type": "integer"},
        {"type": "integer", "minimum": -3, "exclusiveMaximum": 12},
        {"type": "number", "minimum": 0.5, "maximum": 1.5},
        {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 1000},
        {"type": "string", "maxLength": 5},
        {"type": "string", "minLength": 2, "maxLength": 4},
        {"type": "string", "pattern": "^[a-c]{1,3}$"},
        {"type": "string", "format": "date"},
        {"type": "string", "format": "ipv4"},
        {"type": "string", "format": "uuid"},
        {"type": "boolean"},
        {"type": ["null", "boolean"]},
        {"enum": ["red", 'gre"en', 3, None, "ü"]},
        {"const": "fixed"},
        {"$ref": "#/$defs/leaf"},
    ]
)


def nested(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    names = st.lists(st.sampled_from(["a", "b c", "ü", "d"]), unique=True, min_size=1, max_size=3)
    return st.one_of(
        st.builds(
            lambda names, schema, optional: {
                "type": "object",
                "properties": dict.fromkeys(names, schema),
                "required": names[: len(names) - optional],
                "additionalProperties": False,
            },
            names,
            inner,
            st.integers(0, 1),
        ),
        st.builds(lambda items, most: {"type": "array", "items": items, "maxItems": most}, inner, st.integers(0, 3)),
        st.builds(lambda one, two: {"type": "array", "prefixItems": [one, two], "items": False}, inner, inner),
        st.builds(lambda one, two: {"anyOf": [one, two]}, inner, inner),
    )


@settings(max_examples=40)
@given(st.recursive(SCALARS, nested, max_leaves=4), st.integers(0, 1000))
def test_what_is_said_of_a_schema_validates(pipeline: TextPipeline, schema: dict[str, Any], seed: int) -> None:
    schema = {**schema, "$defs": {"leaf": {"type": "integer", "minimum": 5, "maximum": 50}}}
    text, reason = said(pipeline, "json_schema", schema, seed=seed, max_tokens=300)
    assert reason == "length" or jsonschema.validate(json.loads(text), schema) is None


# --- where a text ends ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "fields", "expected"),
    [
        ("abc", {}, ("abc", "stop")),
        ("abc", {"max_tokens": 2}, ("ab", "length")),
        ("abc", {"max_tokens": 3}, ("abc", "length")),
        ("abc", {"ignore_eos": True}, ("abc", "stop")),  # nothing may follow
        ("abc", {"min_tokens": 20}, ("abc", "stop")),
        ("a*", {"ignore_eos": True, "max_tokens": 9}, ("a" * 9, "length")),
        ("a*", {"min_tokens": 9, "logit_bias": {EOS: 100}}, ("a" * 9, "stop")),
        ("a{5,}", {"logit_bias": {ord("a"): -100, EOS: 100}}, ("aaaaa", "stop")),
        ("a{3}b", {"frequency_penalty": 2.0, "repetition_penalty": 10.0}, ("aaab", "stop")),
        # Stop strings and ids end a text where the grammar takes it, and nowhere else.
        ("xyzx", {"stop": ["x", "yz"]}, ("xyzx", "stop")),
        ("(ab)*", {"stop": ["b", "a"], "logit_bias": {EOS: -100}}, ("", "stop")),
        ("a{3,}", {"stop_token_ids": [ord("a")], "logit_bias": {EOS: -100}}, ("aaa", "stop")),
        ("abc", {"stop_token_ids": [USER], "logit_bias": {USER: 100}}, ("abc", "stop")),
    ],
)
def test_a_text_ends_where_its_grammar_does(
    pipeline: TextPipeline, text: str, fields: dict[str, Any], expected: tuple[str, str]
) -> None:
    assert said(pipeline, "regex", text, **fields) == expected


def test_a_stop_string_is_not_looked_for_in_what_the_grammar_needs(pipeline: TextPipeline) -> None:
    text, reason = said(pipeline, "json_schema", PERSON, stop=["A", "}", '"'])
    assert reason == "stop"
    jsonschema.validate(json.loads(text), PERSON)


def test_one_that_becomes_too_much_fails_with_a_reason(pipeline: TextPipeline) -> None:
    events = generate(
        pipeline, asked("lark", 'start: s\ns: s s | s s s | "x" |', max_tokens=400, logit_bias={EOS: -100})
    )
    assert isinstance(events[-1], Failed)
    assert events[-1].code == "invalid_request"
    assert "items" in events[-1].message


# --- whatever else runs -----------------------------------------------------------------------------------------------

COMPANY = [
    ("json_schema", PERSON, {}),
    ("regex", "(foo|ba[rz] )+", {"temperature": 0.7, "logprobs": 3}),
    ("json_schema", {"type": "array", "items": PERSON, "minItems": 3, "maxItems": 3}, {"temperature": 0.0}),
    ("json_object", "{}", {"top_p": 0.9, "frequency_penalty": 0.5}),
    ("regex", "[a-z ]*", {"stop": ["e"], "min_tokens": 3}),
]

Seen = dict[int, tuple[str, str, tuple[Any, ...]]]


def seen(events: list[Any]) -> Seen:
    return {index: (each.text, each.reason, tuple(each.logprobs)) for index, each in choices(events).items()}


def requests() -> list[TextRequest]:
    return [
        asked(kind, text, f"prompt {number}", n=2, seed=number, **{"max_tokens": 60, **fields})
        for number, (kind, text, fields) in enumerate(COMPANY)
    ] + [request("plain", max_tokens=30)]


@pytest.fixture(scope="module")
def alone(pipeline: TextPipeline) -> list[Seen]:
    """Without drafts of any kind."""
    return [seen(generate(pipeline, replace(each, max_draft=0))) for each in requests()]


@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize("put_back", [False, True])
def test_a_text_is_the_same_in_company_with_drafts_and_after_preemptions(
    monkeypatch: pytest.MonkeyPatch, alone: list[Seen], drafts: bool, put_back: bool
) -> None:
    pipeline = create_pipeline(
        FakeDecoder(context=512),
        speculation="ngram" if drafts else None,
        max_num_batched_tokens=400,
        kv_cache_tokens=512 * BLOCK,
    )
    # Most of what comes, and then what no grammar here takes.
    told = ["".join(text for text, _, _ in each.values()).encode() for each in alone]
    monkeypatch.setattr(SuffixIndex, "propose", lambda _, tokens, most: [*_after(told, tokens)[: most - 1], USER])
    draft_freely(pipeline)
    events: dict[str, list[Any]] = {}
    for number, each in enumerate(requests()):
        submit(pipeline, str(number), each)
    while pipeline.busy:
        for event in pipeline.step().events:
            events.setdefault(event.id, []).append(event)
        for sequence in list(pipeline._scheduler._running) if put_back else ():
            if sequence.num_output >= 2 + sequence.order % 3 and not sequence.preemptions:
                pipeline._scheduler._preempt(sequence)
    assert [seen(events[str(number)]) for number in range(len(alone))] == alone
    counters = pipeline.stats().counters
    assert counters[metrics.ACCEPTED.series("grammar")] == counters[metrics.DRAFTED.series("grammar")] > 50
    assert not put_back or counters["preemptions"] > len(alone)
    assert sum(each[-1].usage.drafted_tokens for each in events.values()) == 0 or drafts  # what is forced is no draft
    assert not drafts or counters[metrics.ACCEPTED.series("ngram")] > 20


def _after(told: list[bytes], tokens: list[int]) -> list[int]:
    """What follows the last two tokens where they were said first."""
    last = bytes(token for token in tokens[-2:] if token < 256)
    return next((list(text[text.index(last) + len(last) :]) for text in told if last and last in text), [])


def test_streamed_is_whole(pipeline: TextPipeline) -> None:
    choice = only(generate(pipeline, asked("json_schema", PERSON)))
    assert len(choice.deltas) > 5
    assert "".join(delta.text for delta in choice.deltas) == choice.text


def test_what_was_compiled_is_kept(pipeline: TextPipeline) -> None:
    new = asked("regex", "never asked before")
    assert not pipeline.brief(new)
    generate(pipeline, new)
    assert pipeline.brief(new)
    run(pipeline)
