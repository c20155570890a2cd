"""msgspec's validation errors, with the field spelled as a caller writes it: `models[0].text.max_num_seqs`."""

import difflib
import re
from collections.abc import Iterable, Iterator
from types import NoneType, UnionType
from typing import Annotated, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Struct, ValidationError

_ERROR = re.compile(r"(?P<what>.*?)(?: - at (?P<key>`key` in )?`\$(?P<path>[^`]*)`)?", re.DOTALL)
_FIELD = re.compile(r"Object (?P<how>contains unknown|missing required) field `(?P<name>[^`]*)`")
_STEP = re.compile(r"\.(?P<name>[^.\[]+)|\[(?:\d+|\.\.\.)\]")


class Problem(Struct, frozen=True):
    """What is wrong with one field. `path` is empty where the whole document is meant."""

    path: str
    message: str  # no path in it, no full stop
    unknown: bool = False


def explain(error: ValidationError, of: object) -> Problem:
    """The problem behind an error of decoding or converting to the type `of`."""
    match = _ERROR.fullmatch(str(error))
    what, raw = (match["what"], match["path"] or "") if match else (str(error), "")
    path = raw.removeprefix(".")
    steps = [step["name"] for step in _STEP.finditer(raw)]
    if field := _FIELD.fullmatch(what):
        path = f"{path}.{field['name']}".removeprefix(".")
        if field["how"] == "missing required":
            return Problem(path, "is required")
        legal = field_names(_descend(of, steps))
        return Problem(path, f"is not known{suggestion(field['name'], legal)}", unknown=True)
    if match and match["key"]:
        return Problem(path, f"{describe(what, object)} as a key")
    return Problem(path, describe(what, _descend(of, steps)))


def describe(what: str, of: object) -> str:
    """msgspec's words about one value of the type `of`, with the legal values where they can be listed."""
    what = what.replace("`", "")
    of = bare(of)
    if get_origin(of) is Literal:
        return f"{what[:1].lower()}{what[1:]}; legal: {', '.join(map(str, get_args(of)))}"
    return what[:1].lower() + what[1:]


def suggestion(name: str, legal: Iterable[str]) -> str:
    """A tail for an error about `name`: the nearest legal name, or else all of them."""
    known = sorted(legal)
    if near := difflib.get_close_matches(name, known, n=1, cutoff=0.6):
        return f"; did you mean {near[0]!r}?"
    return f"; known here: {', '.join(known)}" if known else ""


def field_names(of: object) -> set[str]:
    """The wire names of the fields of the Structs in a type."""
    return {field.encode_name for struct in _structs(of) for field in msgspec.structs.fields(struct)}


def bare(of: object) -> object:
    """A type without `Annotated` and without `None`."""
    while get_origin(of) is Annotated:
        of = get_args(of)[0]
    if get_origin(of) in (Union, UnionType):
        rest = [arg for arg in get_args(of) if arg is not NoneType]
        if len(rest) == 1:
            return bare(rest[0])
    return of


def _structs(of: object) -> Iterator[type[Struct]]:
    of = bare(of)
    if isinstance(of, type) and issubclass(of, Struct):
        yield of
    elif get_origin(of) in (Union, UnionType):
        for arg in get_args(of):
            yield from _structs(arg)


def _container(of: object) -> object:
    """The list or table among the types of a union; anything else as it is."""
    if get_origin(of) in (Union, UnionType):
        return next((arg for arg in map(bare, get_args(of)) if get_origin(arg) in (list, dict)), object)
    return of


def _descend(of: object, steps: list[str | None]) -> object:
    """The type at the end of a path; `None` among the steps stands for an element."""
    for step in steps:
        of = bare(of)
        if step is None:
            args = get_args(_container(of))
            of = args[-1] if args else object
        else:
            found = (f.type for s in _structs(of) for f in msgspec.structs.fields(s) if f.encode_name == step)
            of = next(found, object)
    return of
