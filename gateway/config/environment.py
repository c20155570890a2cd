"""The environment's form of every setting.

`GATEWAY_` + the key path in upper case, `__` between its parts. An element of a list is named by its index or by its
name, with every run of other characters than letters and digits as one `_`:

    GATEWAY_SERVER__PORT=8080
    GATEWAY_SERVER__CORS_ORIGINS=https://a.example,https://b.example
    GATEWAY_MODELS__0__QUANTIZATION=int8
    GATEWAY_MODELS__SMOLLM2_135M_INSTRUCT__TEXT__MAX_NUM_SEQS=8

The index after the last one adds an element. A table, or a list of tables, can be given whole, as JSON. An empty value
counts as unset.
"""

import difflib
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import get_args, get_origin

import msgspec
from msgspec import DecodeError, Struct, ValidationError

from gateway.config.validation import bare, describe, suggestion

PREFIX = "GATEWAY_"
SHORTHANDS = {
    "GATEWAY_HOST": "server.host",
    "GATEWAY_PORT": "server.port",
    "GATEWAY_LOG_LEVEL": "server.log_level",
    "GATEWAY_LOG_FORMAT": "server.log_format",
}
# Handled apart: where the file is, and the two that carry a secret, of which only the hash is kept.
OTHERS = ("GATEWAY_CONFIG", "GATEWAY_API_KEY", "GATEWAY_METRICS_KEY", "GATEWAY_CPU_LEVEL")

# What Kubernetes sets in every pod beside a service called "gateway", or "gateway-…"; it is not meant for us.
_SERVICE_LINK = re.compile(r"GATEWAY_(SERVICE_|PORT_\d|\w+_(SERVICE_(HOST|PORT)|PORT_\d+_))")


class VariableError(ValueError):
    """A variable that can't be used; the text names it."""


def overlay(tree: dict[str, object], of: type[Struct], environ: Mapping[str, str]) -> None:
    """Write the environment's values over `tree`, a document of type `of`. Raises VariableError."""
    sections = {_variable(field.encode_name): field.type for field in msgspec.structs.fields(of)}
    found: dict[str, list[str]] = {}
    for name in _ours(environ):
        if name in SHORTHANDS:
            found[name] = SHORTHANDS[name].split(".")
        elif name in sections or "__" in name:
            found[name] = name.removeprefix(PREFIX).lower().split("__")
        elif near := _near(name, [*SHORTHANDS, *OTHERS, *sections, *_parts(sections)]):
            raise VariableError(f"{name} is not known; did you mean {near!r}?")
    # Whole sections come before their parts, new elements (by index) before names that may mean them.
    order = {name: [(0, int(p), "") if p.isdecimal() else (1, 0, p) for p in parts] for name, parts in found.items()}
    for name in sorted(found, key=lambda each: (each not in SHORTHANDS, order[each])):
        _put(tree, of, found[name], environ[name], name)

    if key := _secret(environ, "GATEWAY_API_KEY"):
        keys = tree.setdefault("keys", [])
        if isinstance(keys, list):
            keys.append({"name": "environment", "tenant": "default", "sha256": digest(key)})
    if key := _secret(environ, "GATEWAY_METRICS_KEY"):
        server = tree.setdefault("server", {})
        if isinstance(server, dict):
            server["metrics_sha256"] = digest(key)


def unknown(of: type[Struct], environ: Mapping[str, str]) -> list[str]:
    """Variables with our prefix that have no effect, and that `overlay` takes for somebody else's."""
    sections = {_variable(field.encode_name) for field in msgspec.structs.fields(of)}
    return sorted(name for name in _ours(environ) if name not in {*SHORTHANDS, *sections} and "__" not in name)


def _ours(environ: Mapping[str, str]) -> Iterator[str]:
    """Set, with our prefix, and not handled apart."""
    for name, text in environ.items():
        elsewhere = text.startswith("tcp://") or _SERVICE_LINK.match(name)
        if name.startswith(PREFIX) and name not in OTHERS and text and not elsewhere:
            yield name


def _variable(*path: str) -> str:
    return PREFIX + "__".join(path).upper()


def _parts(sections: Mapping[str, object]) -> Iterator[str]:
    """The variables of what is directly in a section: `GATEWAY_SERVER__PORT`."""
    for section, of in sections.items():
        if isinstance(of, type) and issubclass(of, Struct):
            for field in msgspec.structs.fields(of):
                yield f"{section}__{field.encode_name.upper()}"


def _secret(environ: Mapping[str, str], variable: str) -> str | None:
    key = environ.get(variable)
    if key and re.search(r"\s", key):
        raise VariableError(f"{variable}: a key can't hold white space: no client could send it")
    return key


def digest(key: str) -> str:
    """The form in which a key is kept: SHA-256, in hex."""
    return hashlib.sha256(key.encode()).hexdigest()


def slug(name: str) -> str:
    """A name as a variable spells it, in lower case."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def _near(name: str, known: Iterable[str]) -> str | None:
    """What `name` is a misspelling of. Variables that only share the prefix may be somebody else's."""
    stems = [each.removeprefix(PREFIX) for each in known]
    near = difflib.get_close_matches(name.removeprefix(PREFIX), stems, n=1, cutoff=0.75)
    return f"{PREFIX}{near[0]}" if near else None


def _put(node: object, of: object, parts: list[str], text: str, variable: str) -> None:
    of = bare(of)
    part, rest = parts[0], parts[1:]
    if isinstance(of, type) and issubclass(of, Struct) and isinstance(node, dict):
        fields = {field.encode_name: field.type for field in msgspec.structs.fields(of)}
        if part not in fields:
            raise VariableError(f"{variable}: {part!r} is not known{suggestion(part, fields)}")
        if not rest:
            node[part] = _value(text, fields[part], variable)
            return
        empty: object = [] if get_origin(bare(fields[part])) is list else {}
        _put(node.setdefault(part, empty), fields[part], rest, text, variable)
    elif get_origin(of) is list and isinstance(node, list):
        (element,) = get_args(of)
        index = _index(node, part, variable)
        if not rest:
            node[index : index + 1] = [_value(text, element, variable)]
            return
        if index == len(node):
            node.append({})
        _put(node[index], element, rest, text, variable)
    else:
        raise VariableError(f"{variable}: there is nothing called {'__'.join(parts).upper()} here")


def _index(elements: list[object], part: str, variable: str) -> int:
    if part.isdecimal():
        if int(part) > len(elements):
            raise VariableError(f"{variable}: index {part} leaves a gap; the next free one is {len(elements)}")
        return int(part)
    names = [str(each.get("name", "")) for each in elements if isinstance(each, dict)]
    found = [index for index, name in enumerate(names) if slug(name) == part]
    if len(found) != 1:
        what = "names two entries; use its index" if found else f"is not known{suggestion(part, map(slug, names))}"
        raise VariableError(f"{variable}: {part!r} {what}")
    return found[0]


def _value(text: str, of: object, variable: str) -> object:
    """A variable's text as the plain value that a TOML file would have."""
    kind = bare(of)
    try:
        if get_origin(kind) is list and bare(get_args(kind)[0]) is str and not text.lstrip().startswith("["):
            return [item.strip() for item in text.split(",") if item.strip()]
        if get_origin(kind) in (list, dict) or (isinstance(kind, type) and issubclass(kind, Struct)):
            return msgspec.json.decode(text)
        return msgspec.convert(text, of, strict=False)
    except ValidationError as error:
        raise VariableError(f"{variable}: {describe(str(error), of)}") from None
    except DecodeError as error:
        raise VariableError(f"{variable}: not valid JSON: {error}") from None
