"""Addresses of the web, read once: what is checked is what is asked for."""

import re
from collections.abc import Iterable
from ipaddress import IPv6Address
from urllib.parse import quote

from msgspec import Struct

PORTS = {"http": 80, "https": 443}
MAX_LENGTH = 8192  # characters

# What some parsers drop, and others take for a part of a name.
_AMBIGUOUS = re.compile(r"[\x00-\x20\x7f\\]")
_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<target>[^#]*)(#.*)?", re.IGNORECASE)
_AUTHORITY = re.compile(r"(\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<name>[^\[\]:@%]+))(:(?P<port>[0-9]{1,5})?)?")
_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?:\.(?!-)[a-z0-9_-]{1,63})*")


class BadLocation(ValueError):
    """It can't be asked for; the text says why, without a subject."""


class Location(Struct, frozen=True):
    scheme: str
    host: str  # in lower case, in ASCII, without a dot at its end; an IPv6 address without brackets
    port: int
    target: str  # path and query

    @property
    def authority(self) -> str:
        """As the Host header has it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.authority}{self.target}"


def parse_location(url: str) -> Location:
    """Raises BadLocation."""
    if len(url) > MAX_LENGTH:
        raise BadLocation(f"is longer than the {MAX_LENGTH} characters that an address may have")
    if _AMBIGUOUS.search(url):
        raise BadLocation("has spaces, control characters or backslashes in its address")
    match = _URL.fullmatch(url)
    scheme = match["scheme"].lower() if match else ""
    if match is None or scheme not in PORTS:
        raise BadLocation("must be a data: URI, or an address that begins with https:// or http://")
    host, port = parse_host(match["authority"])
    target = match["target"] if match["target"].startswith("/") else "/" + match["target"]
    ascii_target = re.sub(r"[^\x21-\x7e]+", lambda found: quote(found[0]), target)
    return Location(scheme, host, PORTS[scheme] if port is None else port, ascii_target)


def parse_host(authority: str) -> tuple[str, int | None]:
    """(host, port): None where there is none. Raises BadLocation, also for a name and password in front."""
    if "@" in authority:
        raise BadLocation("has a name or password in its address")
    match = _AUTHORITY.fullmatch(authority)
    if match is None:
        raise BadLocation("has no valid host in its address")
    port = int(match["port"]) if match["port"] else None
    if port is not None and not 0 < port < 65536:
        raise BadLocation("has no valid port in its address")
    if match["v6"]:
        try:
            return str(IPv6Address(match["v6"])), port
        except ValueError:
            raise BadLocation("has no valid host in its address") from None
    return _ascii(match["name"]), port


class Hosts:
    """Those that may be asked: exactly as they are listed, at their schemes' own ports unless a port is listed too."""

    def __init__(self, listed: Iterable[str]) -> None:
        """`listed`: `host` or `host:port`. Raises BadLocation."""
        self._listed = frozenset(map(parse_host, listed))

    def __bool__(self) -> bool:
        return bool(self._listed)

    def __contains__(self, location: Location) -> bool:
        usual = location.port == PORTS[location.scheme]
        return (location.host, location.port) in self._listed or (usual and (location.host, None) in self._listed)


def _ascii(name: str) -> str:
    if not name.isascii():
        import idna  # takes a while, and is seldom needed

        try:
            name = idna.encode(name, uts46=True).decode()
        except idna.IDNAError:
            raise BadLocation("has no valid host in its address") from None
    name = name.lower().removesuffix(".")
    if len(name) > 253 or not _NAME.fullmatch(name):
        raise BadLocation("has no valid host in its address")
    return name
