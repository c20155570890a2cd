"""Decoding that is kept to a JSON schema, against the same without."""

import json
from collections.abc import Iterator
from functools import partial
from itertools import count
from time import perf_counter

from models.tokenizer.tokenizer import load_tokenizer
from pipelines.messages.grammar import Grammar
from pipelines.text.grammar.compiler import Grammars
from tests.benchmarks.figures import Figure, at_least, ratio
from tests.benchmarks.harness import Bench, Subject, model_file

PROMPT, DECODED = 128, 128
STREAMS = (1, 16)
ROWS = 400
_PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "mood": {"enum": ["good", "bad", "unknown"]},
        "friends": {"type": "array", "items": {"type": "string", "maxLength": 40}},
    },
    "required": ["name", "age", "mood", "friends"],
    "additionalProperties": False,
}
# It never comes to an end.
SCHEMA = {"type": "array", "items": _PERSON, "minItems": 10_000}


def compare(bench: Bench) -> Iterator[Figure]:
    engine = bench.engine()
    tokens = bench.scaled(DECODED, 48)
    schema = json.dumps(SCHEMA)

    def rate(streams: int, **options: int | str) -> float:
        stamps = engine.generate(bench.prompts(streams, PROMPT), tokens, **options)
        return streams * (tokens - 1) / (max(each[-1] for each in stamps) - min(each[0] for each in stamps))

    for streams in STREAMS:
        found = bench.interleave(
            {
                "schema": Subject(partial(rate, streams, schema=schema, max_draft=0), [engine]),
                "schema, forced tokens drafted": Subject(partial(rate, streams, schema=schema), [engine]),
                "plain": Subject(partial(rate, streams, max_draft=0), [engine]),
            }
        )
        definition = (
            f"{streams} streams, {PROMPT}-token prompts, {tokens} tokens each: tokens a second behind the first"
        )
        name = f"at {streams}"
        yield ratio(f"schema ÷ plain {name}", definition, found["schema"], found["plain"], at_least(0.95, 0.9))
        for kind, values in found.items():
            yield Figure(f"{kind} {name}", definition, "tokens/s", values)

    names = map(str, count())

    def first_tokens() -> tuple[float, float]:
        own = json.dumps({**SCHEMA, "title": next(names)})
        ((new,),) = engine.generate(bench.prompts(1, PROMPT), 1, schema=own)
        ((kept,),) = engine.generate(bench.prompts(1, PROMPT), 1, schema=own)
        return new, kept

    pairs = bench.interleave({"both": Subject(first_tokens, [engine])})["both"]
    for name, values in zip(("new", "kept"), zip(*pairs, strict=True), strict=True):
        definition = f"request → first token of a {PROMPT}-token prompt, the schema new or the one asked for before"
        yield Figure(f"TTFT, {name} schema", definition, "ms", [seconds * 1e3 for seconds in values])
    yield Figure(
        "a mask",
        f"what may come next, of one row; mean of {ROWS} of a text kept to the schema",
        "µs",
        bench.interleave({"masks": Subject(mask_time)})["masks"],
    )


def mask_time() -> float:
    """Microseconds of a mask, along a text of the schema."""
    tokenizer = load_tokenizer(model_file())
    automaton = Grammars(tokenizer, tokenizer.vocab_size, tokenizer.eos_ids).compile(
        Grammar("json_schema", json.dumps(SCHEMA)), "schema"
    )
    person = {"name": "Margaret of Whitby", "age": 31, "mood": "unknown", "friends": ["Ann", "Two Brothers"]}
    text = json.dumps([person] * 20, separators=(",", ":"))
    matcher, seconds, rows = automaton.start(), 0.0, 0
    for token in tokenizer.encode(text, add_special=False)[:ROWS]:
        began = perf_counter()
        automaton.tokens.masks([matcher])
        seconds += perf_counter() - began
        rows += 1
        matcher.consume_token(token)
    return seconds / rows * 1e6
