"""Which addresses a fetch may connect to, and the names that lead to them."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Resolve = Callable[[str, int], Awaitable[Sequence[Address]]]  # (host, port) -> in the order in which to try them

GLOBAL_UNICAST = IPv6Network("2000::/3")  # all else of IPv6 is something of its own
TEREDO = IPv6Network("2001::/32")
NAT64 = IPv6Network("64:ff9b::/96")
EXAMPLES = IPv6Network("3fff::/20")  # RFC 9637; newer than some versions of `ipaddress`
RELAYS = IPv4Network("192.88.99.0/24")  # of 6to4, which nobody runs any more


class Unresolved(Exception):
    """A name that leads nowhere."""


async def resolve(host: str, port: int) -> Sequence[Address]:
    """By the system. Raises Unresolved."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise Unresolved from None
    # An address of a link has its interface behind a "%", which an address object keeps.
    return [ip_address(str(each[4][0])) for each in found]


def is_public(address: Address, allowed: Collection[Network] = ()) -> bool:
    """Whether an address is one of the Internet's, or in an `allowed` network.

    An IPv6 address that carries one of IPv4, in whatever way, is what it carries: somebody translates it on the way.
    """
    if any(address in network for network in allowed):
        return True
    if isinstance(address, IPv4Address):
        return _is_public_v4(address)
    if address.ipv4_mapped is not None:
        return is_public(address.ipv4_mapped, allowed)
    if address in NAT64:
        return is_public(_tail(address), allowed)
    if address.sixtofour is not None:
        return is_public(address.sixtofour, allowed)
    if address in TEREDO:
        return address.teredo is not None and all(is_public(each, allowed) for each in address.teredo)
    return address in GLOBAL_UNICAST and address.is_global and not address.is_private and address not in EXAMPLES


def _is_public_v4(address: IPv4Address) -> bool:
    special = address.is_private or address.is_multicast or address.is_reserved or address.is_unspecified
    return address.is_global and not special and address not in RELAYS


def _tail(address: IPv6Address) -> IPv4Address:
    return IPv4Address(int(address) & 0xFFFFFFFF)
