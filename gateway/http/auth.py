"""Who is asking. Every route wants a key, except those that declare themselves open; unknown routes want it too."""

import hashlib
import hmac
import re
from collections.abc import Iterable, Sequence

from msgspec import Struct

from gateway.asgi import Scope, header
from gateway.config.settings import KeySettings
from gateway.endpoint import Access, Endpoint
from gateway.errors import unauthorized
from pipelines.messages.frames import Priority

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

    def guards(self, access: Access) -> bool:
        """Whether a key is wanted. A metrics key guards the metrics even where the API itself is open."""
        return access != "open" and (not self.empty or (self._metrics is not None and access == "metrics"))

    def find(self, key: bytes, access: Access) -> Principal | None:
        """The owner of a key, if it gives such access. Takes the same time whichever key it is."""
        digest = hashlib.sha256(key).digest()
        found = None
        for known, principal in self._keys:
            if hmac.compare_digest(known, digest):
                found = principal
        if self._metrics is not None and hmac.compare_digest(self._metrics, digest) and access == "metrics":
            return METRICS_READER
        return found


class Authentication:
    """A guard outside all routing, so that no spelling of a path gets round it."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring

    def __call__(self, scope: Scope) -> None:
        """Finds the caller. Raises ApiError (401)."""
        endpoint: Endpoint | None = scope["state"].get("endpoint")
        access: Access = "key" if endpoint is None else endpoint.access_of(scope["path"])
        if not self._keyring.guards(access):
            principal: Principal | None = ANONYMOUS
        else:
            key = presented_key(scope)
            if key is None:
                raise unauthorized("An API key is needed: send it as 'Authorization: Bearer KEY'.")
            principal = self._keyring.find(key, access)
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
