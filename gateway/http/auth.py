"""Who is asking. Every route wants a key, except the open ones below; unknown routes want it too."""

import hashlib
import hmac
import re
from collections.abc import Iterable, Sequence

from msgspec import Struct

from gateway.asgi import Scope, header
from gateway.config.settings import KeySettings
from gateway.errors import unauthorized
from gateway.paths import FILES, collapsed
from pipelines.messages.frames import Priority

# Exactly these, as the client wrote them; `/ready/NAME` and pictures kept for their address beside them.
OPEN_PATHS = frozenset({"/health", "/ready"})
OPEN_PREFIX = "/ready/"
# A picture behind an address that nobody can guess: a page's <img> sends no key.
_PICTURE = re.compile(re.escape(FILES) + r"/[A-Za-z0-9_-]+\.[a-z]+")
METRICS_PATHS = frozenset({"/metrics", "/v1/metrics"})

# Browsers can send no header with a WebSocket; OpenAI's clients put the key among the subprotocols.
SUBPROTOCOL_KEY = "openai-insecure-api-key."

_BEARER = re.compile(rb"bearer +(\S+) *", re.IGNORECASE)


class Principal(Struct, frozen=True):
    """The caller, found in `scope["state"]["principal"]`."""

    name: str  # the key's, for logs and quotas
    tenant: str  # whose cached prefixes it may share
    priority: Priority  # the highest that it may ask for


ANONYMOUS = Principal(name="", tenant="default", priority="interactive")
METRICS_READER = Principal(name="metrics", tenant="", priority="batch")


class Keyring:
    """The known keys. With none, everyone is `ANONYMOUS`, whatever bearer is sent."""

    def __init__(self, keys: Sequence[KeySettings], metrics_sha256: str | None = None) -> None:
        self._keys = [(bytes.fromhex(key.sha256), Principal(key.name, key.tenant, key.priority)) for key in keys]
        self._metrics = bytes.fromhex(metrics_sha256) if metrics_sha256 else None

    @property
    def empty(self) -> bool:
        return not self._keys

    def guards(self, path: str) -> bool:
        """Whether a route wants a key. A metrics key guards the metrics even where the API itself is open."""
        return not self.empty or (self._metrics is not None and _is_metrics(path))

    def find(self, key: bytes, path: str) -> Principal | None:
        """The owner of a key, for a route. Takes the same time whichever key it is."""
        digest = hashlib.sha256(key).digest()
        found = None
        for known, principal in self._keys:
            if hmac.compare_digest(known, digest):
                found = principal
        if self._metrics is not None and hmac.compare_digest(self._metrics, digest) and _is_metrics(path):
            return METRICS_READER
        return found


def is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(OPEN_PREFIX) or _PICTURE.fullmatch(path) is not None


def _is_metrics(path: str) -> bool:
    """Whether the router takes a path, as the client wrote it, for one of the metrics'."""
    return collapsed(path).rstrip("/") in METRICS_PATHS


class Authentication:
    """A guard outside all routing, so that no spelling of a path gets round it."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring

    def __call__(self, scope: Scope) -> None:
        """Finds the caller. Raises ApiError (401)."""
        path = scope["path"]
        if is_open(path) or not self._keyring.guards(path):
            principal: Principal | None = ANONYMOUS
        else:
            key = presented_key(scope)
            if key is None:
                raise unauthorized("An API key is needed: send it as 'Authorization: Bearer KEY'.")
            principal = self._keyring.find(key, path)
        if principal is None:
            raise unauthorized("The API key is not known here.")
        scope["state"]["principal"] = principal


def presented_key(scope: Scope) -> bytes | None:
    """The key that a request carries, as a bearer or, on a WebSocket, as a subprotocol."""
    if found := _BEARER.fullmatch(header(scope, b"authorization") or b""):
        return found[1]
    if scope["type"] == "websocket":
        return _subprotocol_key(scope["subprotocols"])
    return None


def _subprotocol_key(subprotocols: Iterable[str]) -> bytes | None:
    for offered in subprotocols:
        if offered.startswith(SUBPROTOCOL_KEY):
            return offered.removeprefix(SUBPROTOCOL_KEY).encode()
    return None
