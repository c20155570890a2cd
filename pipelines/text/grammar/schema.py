"""What of JSON Schema can be kept to, and what OpenAI's strict subset allows."""

from collections.abc import Iterator
from fractions import Fraction
from math import lcm
from typing import Any, NoReturn

import msgspec

from pipelines.base import InvalidRequest

# Keywords that no grammar keeps: a schema that has one is refused.
UNSUPPORTED = frozenset(
    (
        "contains",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "else",
        "if",
        "maxContains",
        "minContains",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
        "uniqueItems",
        "$dynamicAnchor",
        "$dynamicRef",
        "$recursiveAnchor",
        "$recursiveRef",
    )
)
FORMATS = frozenset(("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"))
NOT_STRICT = frozenset(("allOf", "oneOf", "patternProperties"))
STRICT_PROPERTIES, STRICT_DEPTH, STRICT_ENUM = 5000, 10, 1000  # of a whole schema
MOST_MULTIPLE = 1000  # an automaton has a state for each remainder
MOST_MULTIPLES = 10_000  # so many where several are intersected
# Intersecting patterns takes twice as long with each of them.
MOST_INTERSECTED = 8
MOST_DEPTH = 100
MOST_LITERAL = 4096  # characters of a value that is given: what has to come is cut into tokens with every token

_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("anyOf", "allOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "additionalItems")
_MATCHED = ("pattern", "format", "minLength", "maxLength", "multipleOf", "patternProperties")


def read_schema(text: str, field: str, *, strict: bool) -> dict[str, Any]:
    """A schema that can be kept to, but for what only compiling it tells. Raises InvalidRequest, which names the
    keyword by its path from `field`."""
    try:
        schema = msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the schema can't be read: {error}", field) from None
    if not isinstance(schema, dict):
        raise InvalidRequest("the schema must be an object", field)
    _Check(field, strict=strict).run(schema)
    return schema


class _Check:
    """One walk over all schemas of a schema."""

    def __init__(self, field: str, *, strict: bool) -> None:
        self._field = field
        self._strict = strict
        self._properties = self._enum = self._intersections = self._matched = 0
        self._multiples = 1

    def run(self, root: dict[str, Any]) -> None:
        if self._strict and (root.get("type") != "object" or "anyOf" in root):
            self._refuse(self._field, "with 'strict' the schema must be an object's, and no 'anyOf'")
        pending = [(self._field, 0, root)]
        while pending:
            at, depth, schema = pending.pop()
            if not isinstance(schema, dict):
                if not isinstance(schema, bool):
                    self._refuse(at, "it must be a schema")
                continue
            if depth > MOST_DEPTH:
                self._refuse(at, f"the schema is nested more than {MOST_DEPTH} deep")
            self._keywords(at, schema)
            if self._strict:
                self._subset(at, depth, schema)
            pending.extend((f"{at}.{path}", depth + deeper, each) for path, deeper, each in _inner(schema))
        if self._intersections and self._multiples > MOST_MULTIPLES:
            self._refuse(self._field, "it intersects too many 'multipleOf' ('allOf', and keywords beside '$ref')")
        if min(self._intersections, self._matched) > MOST_INTERSECTED:
            self._refuse(self._field, "it intersects too many patterns ('allOf', and keywords beside '$ref')")

    def _keywords(self, at: str, schema: dict[str, Any]) -> None:
        schema.pop("x-guidance", None)  # a library's own options: a foreign annotation as any other
        if schema.get("uniqueItems") is False:
            del schema["uniqueItems"]  # it asks for nothing
        for keyword in schema:
            if keyword in UNSUPPORTED:
                self._refuse(f"{at}.{keyword}", f"the keyword '{keyword}' can't be enforced")
        form = schema.get("format")
        if form is not None and form not in FORMATS:
            known = ", ".join(sorted(FORMATS))
            self._refuse(f"{at}.format", f"the format {str(form)[:40]!r} can't be enforced; known: {known}")
        multiple = schema.get("multipleOf")
        if isinstance(multiple, int | float) and multiple > 0:
            if multiple > MOST_MULTIPLE:
                self._refuse(f"{at}.multipleOf", f"it may be {MOST_MULTIPLE} at most")
            self._multiples = lcm(self._multiples, Fraction(str(multiple)).numerator)
        given = [schema.get("const"), *(each if isinstance(each := schema.get("enum"), list) else ())]
        if any(len(str(value)) > MOST_LITERAL for value in given):
            self._refuse(at, f"a value of 'const' or 'enum' may have {MOST_LITERAL} characters")
        self._matched += sum(keyword in schema for keyword in _MATCHED)
        if isinstance(every := schema.get("allOf"), list):
            self._intersections += len(every)
        self._intersections += "$ref" in schema and any(keyword in schema for keyword in _MATCHED)

    def _subset(self, at: str, depth: int, schema: dict[str, Any]) -> None:
        """https://platform.openai.com/docs/guides/structured-outputs#supported-schemas"""
        for keyword in schema:
            if keyword in NOT_STRICT:
                self._refuse(f"{at}.{keyword}", f"the keyword '{keyword}' is not allowed with 'strict'")
        kind, properties = schema.get("type"), schema.get("properties", {})
        if kind == "object" or (isinstance(kind, list) and "object" in kind) or properties:
            if schema.get("additionalProperties") is not False:
                self._refuse(f"{at}.additionalProperties", "with 'strict' it must be given, and be false")
            required = schema.get("required", [])
            missing = [name for name in properties if not isinstance(required, list) or name not in required]
            if missing:
                self._refuse(f"{at}.required", f"with 'strict' it must name every property: {missing[0][:60]!r}")
            self._properties += len(properties)
        self._enum += len(schema["enum"]) if isinstance(schema.get("enum"), list) else 0
        for most, count, what in (
            (STRICT_DEPTH, depth, "levels"),
            (STRICT_PROPERTIES, self._properties, "properties"),
            (STRICT_ENUM, self._enum, "values of enumerations"),
        ):
            if count > most:
                self._refuse(at, f"with 'strict' a schema may have {most} {what}")

    def _refuse(self, at: str, reason: str) -> NoReturn:
        raise InvalidRequest(reason, at)


def _inner(schema: dict[str, Any]) -> Iterator[tuple[str, int, Any]]:
    """The schemas in a schema: path, levels of the value that it is deeper, schema."""
    for keyword in _MAPS:
        if isinstance(named := schema.get(keyword), dict):
            deeper = keyword in ("properties", "patternProperties")
            yield from ((f"{keyword}.{name}", deeper, each) for name, each in named.items())
    for keyword in _LISTS:
        if isinstance(listed := schema.get(keyword), list):
            yield from ((f"{keyword}[{index}]", False, each) for index, each in enumerate(listed))
    for keyword in _SINGLE:
        match schema.get(keyword):
            case list() as listed:
                yield from ((f"{keyword}[{index}]", True, each) for index, each in enumerate(listed))
            case None:
                pass
            case each:
                yield keyword, True, each
