"""All that an operator can decide, validated once, at start."""

import ipaddress
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tomllib import TOMLDecodeError
from typing import Annotated, Literal, Protocol, TypeVar

import msgspec
from msgspec import Meta, Struct, ValidationError

from gateway.config import config_file, environment
from gateway.config.config_file import ConfigFile
from gateway.config.environment import VariableError
from gateway.config.validation import explain
from gateway.location import BadLocation, parse_host
from models.errors import ModelLoadError
from models.files.catalog import EMBEDDED, OWN, EmbeddedModel
from models.files.signs import detect_kind
from models.files.source import resolve
from pipelines.kinds import KINDS, Kind, signs_by_kind
from pipelines.logs import LogFormat, LogLevel, LogOptions
from pipelines.messages.base import Count, Options
from pipelines.messages.frames import ModelSpec, Priority

DEFAULT_FILE = "gateway.toml"

Seconds = Annotated[float, Meta(gt=0, le=31_536_000)]  # a year: timers take no infinity
Milliseconds = Annotated[float, Meta(gt=0)]
Bytes = Annotated[int, Meta(gt=0)]
Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
# As a browser sends it, without a path; else it would match none.
Origin = Annotated[str, Meta(pattern=r"^(\*|[A-Za-z][A-Za-z0-9+.-]*://[^/?#\s]+/?)$")]
# Scheme and host, and a path where a proxy serves the gateway under one.
BaseUrl = Annotated[str, Meta(pattern=r"^https?://[^/?#\s]+(/[^?#\s]*)?$")]
# A host whose pictures may be fetched, with a port where it is not its scheme's.
ImageHost = Annotated[str, Meta(pattern=r"^[^/?#@\s]+$")]
# A name or an address, without scheme and port.
HostName = Annotated[str, Meta(pattern=r"^([A-Za-z0-9_.-]+|[0-9A-Fa-f:.]+)$")]
# A model's name or alias. Slashes, as in `org/name`, are part of it; spaces and controls are not.
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:@+/-]*$", max_length=200)]

O = TypeVar("O", bound=Options)  # noqa: E741 (options)


class SettingsError(ValueError):
    """The configuration can't be used; the text names the key (and its line) or the variable."""


class _Table(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class ServerSettings(_Table, frozen=True):
    """`[server]`"""

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8000  # 0: any free one
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"
    cors_origins: list[Origin] = []  # as a browser sends them, `https://app.example`; "*" for any
    allowed_hosts: list[HostName] = []  # further Host names that are answered while no key is set
    metrics_sha256: Sha256 | None = None  # of a key that opens the metrics and nothing else
    max_body_bytes: Bytes = 32 * 2**20
    max_upload_bytes: Bytes = 2**30  # the same for media files, which go to the spool
    max_image_bytes: Bytes = 50 * 2**20  # of each picture of a request, wherever it comes from
    # Of all pictures of a JSON request, which travel to the worker in one frame.
    max_request_image_bytes: Annotated[int, Meta(gt=0, le=128 * 2**20)] = 64 * 2**20
    image_hosts: list[ImageHost] = []  # that pictures are fetched from, `images.example.com` or with a port
    private_image_networks: list[str] = []  # where these hosts may be beside the Internet: `10.1.0.0/16`
    image_fetch_timeout_s: Seconds = 10.0  # for all of one picture, redirects included
    spool_dir: str = "spool"
    spool_max_bytes: Bytes = 10 * 2**30
    image_url_ttl_s: Seconds = 3600.0  # how long a picture can be fetched from its address
    image_url_max_files: Count = 1000  # pictures kept for that; the oldest go first
    image_url_max_bytes: Bytes = 2**30
    public_url: BaseUrl | None = None  # what such an address begins with; None: as the request spelled this server
    header_timeout_s: Seconds = 10.0  # first byte of a request -> its last header
    body_timeout_s: Seconds = 60.0  # headers -> last byte of a JSON body
    keep_alive_s: Seconds = 75.0  # idle time before a connection is closed
    drain_s: Seconds = 30.0  # what running requests get after SIGTERM

    @property
    def log(self) -> LogOptions:
        return LogOptions(self.log_level, self.log_format)


class KeySettings(_Table, frozen=True):
    """`[[keys]]`: the key itself is not kept. `printf %s KEY | sha256sum` prints the hash."""

    name: str
    sha256: Sha256
    tenant: str = "default"  # cached prefixes are shared inside a tenant only
    priority: Priority = "interactive"  # the highest that its requests may ask for


class SloSettings(_Table, frozen=True):
    """`[models.slo]`: a request that misses any of these is no goodput."""

    ttft_ms: Milliseconds | None = None
    itl_ms: Milliseconds | None = None
    tpot_ms: Milliseconds | None = None
    e2e_ms: Milliseconds | None = None


class _Model(_Table, frozen=True):
    """`[[models]]`, but for the options of the model's kind."""

    name: Name
    source: str  # "embedded:NAME" | a local path | "hf:repo@revision"
    aliases: list[Name] = []
    kind: str | None = None  # read from the files' headers when absent; never None once loaded
    pipeline: str | None = None  # "module:Class"; the kind's own when absent, never None once loaded
    device: Annotated[str, Meta(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    threads: Count | None = None
    quantization: Literal["int8", "int4"] | None = None  # None: as the files have it
    dtype: Literal["bfloat16", "float16", "float32"] | None = None  # None: what is fastest
    replicas: Count = 1
    max_queue: Annotated[int, Meta(ge=0)] = 32
    max_inflight: Count | None = None  # None: what the worker announces
    timeout_s: Seconds = 600.0  # arrival -> end
    first_event_timeout_s: Seconds = 120.0  # slot -> first event
    gap_timeout_s: Seconds = 60.0  # between two events
    step_timeout_s: Seconds = 120.0  # a step older than this costs the worker its life
    required: bool = True  # /ready waits for it, if it is preloaded
    preload: bool = True
    slo: SloSettings = SloSettings()


class ModelSettings(_Model, frozen=True):
    """One model as it is served."""

    options: Options | None = None  # of its kind; None: what they are by themselves, never None once loaded

    def options_as(self, of: type[O]) -> O:
        """Its options; raises SettingsError for those of another kind."""
        options = self.options or KINDS[self.kind or ""].options()
        if not isinstance(options, of):
            raise SettingsError(f"model {self.name!r} has no {of.__name__}")
        return options

    def spec(self) -> ModelSpec[Options]:
        """What its workers need. Only for loaded settings."""
        if self.kind is None or self.pipeline is None:
            raise SettingsError(f"model {self.name!r} has no kind")
        return ModelSpec(
            name=self.name,
            kind=self.kind,
            pipeline=self.pipeline,
            source=self.source,
            options=self.options_as(KINDS[self.kind].options),
            device=self.device,
            threads=self.threads,
            quantization=self.quantization,
            dtype=self.dtype,
        )


class _Operation(_Table, frozen=True):
    """All but the models."""

    server: ServerSettings = ServerSettings()
    keys: list[KeySettings] = []


class Settings(_Operation, frozen=True):
    models: list[ModelSettings] = []


class _Document(Protocol):
    """Settings as a file and the environment have them: `document_type`."""

    server: ServerSettings
    keys: list[KeySettings]
    models: list[_Model]  # each with the options of all kinds, by the kind's name


def load_settings(
    path: str | Path | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Settings:
    """The configuration: a file, over it the environment, over both `overrides` (fields of `[server]`).

    Without `path` the file is $GATEWAY_CONFIG, else `gateway.toml` where there is one. Without any model in it, the
    embedded ones are served. Raises SettingsError.
    """
    environ = environ or {}
    file = _read(path or environ.get("GATEWAY_CONFIG"))
    tree = dict(file.values) if file else {}
    if "models" not in tree:
        tree["models"] = default_models()
    try:
        environment.overlay(tree, document_type(), environ)
    except VariableError as error:
        raise SettingsError(str(error)) from None
    server = tree.get("server")
    if overrides and (server is None or isinstance(server, dict)):
        tree["server"] = {**(server or {}), **overrides}
    document = _convert(tree, file)
    try:
        models = [_of_its_kind(model, f"models[{index}]") for index, model in enumerate(document.models)]
        settings = Settings(server=document.server, keys=document.keys, models=models)
        check(settings)
    except _Invalid as error:
        raise SettingsError(f"{_where(file, error.key)}{error.key}: {error.message}") from None
    return settings


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Variables that look like settings, and are none: nothing reads them."""
    return environment.unknown(document_type(), environ)


def document_type() -> type[Struct]:
    """What a file and the environment may hold: for each kind, a model may have a table of options."""
    return _document_type(tuple(KINDS.values()))


@cache
def _document_type(kinds: tuple[Kind, ...]) -> type[Struct]:
    tables: list[tuple[str, object, object]] = [(kind.name, kind.options, kind.options()) for kind in kinds]
    tables.append(("kind", Literal[tuple(kind.name for kind in kinds)] | None, None))
    model = msgspec.defstruct("Model", tables, bases=(_Model,), frozen=True, kw_only=True)
    models: tuple[str, object, list[object]] = ("models", list[model], [])  # type: ignore[valid-type]
    return msgspec.defstruct("Document", [models], bases=(_Operation,), frozen=True, kw_only=True)


def default_models() -> list[dict[str, object]]:
    """The embedded models whose packages are installed, as a file would configure them; all of them if no package is,
    so that their workers say what is missing."""
    defaults = {name: entry for name, entry in EMBEDDED.items() if entry.default and entry.kind in KINDS}
    installed = {name: entry for name, entry in defaults.items() if entry.installed}
    served = installed if any(entry.package != OWN for entry in installed.values()) else defaults
    return [
        {"name": name, "aliases": list(entry.aliases), "kind": entry.kind, **_sources(name, entry)}
        for name, entry in served.items()
    ]


def _sources(name: str, entry: EmbeddedModel) -> dict[str, object]:
    if entry.sees_for is None:
        return {"source": f"embedded:{name}"}
    return {"source": f"embedded:{entry.sees_for}", "text": {"vision": f"embedded:{name}"}}


def is_loopback(host: str) -> bool:
    """Whether a host name or address can only be reached from this machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


class _Invalid(ValueError):
    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key
        self.message = message


def check(settings: Settings) -> None:
    """What no single field can tell."""
    if not settings.models:
        raise _Invalid("models", "at least one is needed; without the key, the embedded models are served")
    owners: dict[str, str] = {}
    for index, model in enumerate(settings.models):
        for key, name in [("name", model.name), *((f"aliases[{i}]", alias) for i, alias in enumerate(model.aliases))]:
            if name in owners:
                raise _Invalid(f"models[{index}].{key}", f"{name!r} is taken by {owners[name]}")
            owners[name] = f"models[{index}]"
        if model.options is not None and (conflict := model.options.conflict()) is not None:
            option, message = conflict
            raise _Invalid(f"models[{index}].{model.kind}.{option}", message)
    hashes: set[str] = set()
    for index, each in enumerate(settings.keys):
        if each.sha256 in hashes:
            raise _Invalid(f"keys[{index}].sha256", "another key has the same hash")
        hashes.add(each.sha256)
    if settings.server.metrics_sha256 in hashes:
        raise _Invalid("server.metrics_sha256", "is an API key's hash; the metrics key must be one of its own")
    _check_image_hosts(settings.server)
    if not settings.keys and not is_loopback(settings.server.host):
        raise _Invalid(
            "server.host",
            f"{settings.server.host!r} can be reached from other machines, so an API key is needed: "
            "set GATEWAY_API_KEY or [[keys]], or bind to 127.0.0.1",
        )


def _check_image_hosts(server: ServerSettings) -> None:
    for index, host in enumerate(server.image_hosts):
        try:
            parse_host(host)
        except BadLocation:
            raise _Invalid(f"server.image_hosts[{index}]", f"{host!r} is no host, or host:port") from None
    for index, network in enumerate(server.private_image_networks):
        try:
            ipaddress.ip_network(network)
        except ValueError as error:
            raise _Invalid(f"server.private_image_networks[{index}]", str(error)) from None


def _read(path: str | Path | None) -> ConfigFile | None:
    if path is None:
        path = Path(DEFAULT_FILE)
        if not path.is_file():
            return None
    try:
        return config_file.read(Path(path))
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror or error}") from None
    except (TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: not valid TOML: {error}") from None


def _convert(tree: dict[str, object], file: ConfigFile | None) -> _Document:
    try:
        document: _Document = msgspec.convert(tree, document_type())  # type: ignore[assignment]
    except ValidationError as error:
        problem = explain(error, document_type())
        raise SettingsError(f"{_where(file, problem.path)}{problem.path}: {problem.message}") from None
    return document


def _where(file: ConfigFile | None, key: str) -> str:
    return f"{file.where(key)}: " if file else ""


def _of_its_kind(model: _Model, key: str) -> ModelSettings:
    """With the options of its kind alone, and what its card has."""
    name = model.kind or _kind(model, key)
    kind = KINDS[name]
    for other in KINDS.values():
        if other is not kind and getattr(model, other.name) != other.options():
            raise _Invalid(f"{key}.{other.name}", f"is for models of this kind alone, not for {name!r}")
    fields = {field: getattr(model, field) for field in _Model.__struct_fields__}
    fields |= {"kind": name, "pipeline": model.pipeline or kind.pipeline}
    return ModelSettings(**fields, options=getattr(model, name))


def _kind(model: _Model, key: str) -> str:
    """Read from the files' headers."""
    scheme, _, name = model.source.partition(":")
    if scheme == "embedded" and name in EMBEDDED:
        if EMBEDDED[name].sees_for is not None:
            raise _Invalid(f"{key}.source", f"is a half that sees: name it as `vision` in a text model's [{key}.text]")
        return EMBEDDED[name].kind
    try:
        return detect_kind(resolve(model.source), signs_by_kind())
    except (ModelLoadError, OSError, ValueError) as error:  # ValueError: a description that is no JSON
        raise _Invalid(f"{key}.source", str(error)) from None
