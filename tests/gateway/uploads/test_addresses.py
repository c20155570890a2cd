"""Which addresses are the Internet's."""

import asyncio
from ipaddress import ip_address, ip_network

import pytest

from gateway.uploads.addresses import Unresolved, is_public, resolve


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2002:808:808::1"],
)
def test_public(address: str) -> None:
    assert is_public(ip_address(address))


@pytest.mark.parametrize(
    "address",
    [
        *["0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "127.0.0.1", "127.255.255.254", "169.254.169.254"],
        *["172.16.0.1", "172.31.255.255", "192.0.0.1", "192.0.2.1", "192.88.99.1", "192.168.0.1", "198.18.0.1"],
        *["198.51.100.1", "203.0.113.1", "224.0.0.1", "224.0.1.1", "239.255.255.250", "240.0.0.1", "255.255.255.255"],
        *["::", "::1", "::127.0.0.1", "::8.8.8.8", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:0:127.0.0.1"],
        *["64:ff9b::127.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::8.8.8.8", "100::1", "2001:db8::1", "3fff::1"],
        *["2002:7f00:1::1", "2002:a00:1::1", "2001:0:808:808::80ff:fffe", "2001:0:7f00:1::f7f7:f7f7"],
        *["fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "ff0e::1", "5f00::1"],
    ],
)
def test_not_public(address: str) -> None:
    assert not is_public(ip_address(address))


def test_networks_that_are_allowed_beside() -> None:
    networks = [ip_network("10.1.0.0/16"), ip_network("fd00:1::/32")]
    for inside in ("10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::10.1.2.3", "fd00:1::5", "8.8.8.8"):
        assert is_public(ip_address(inside), networks)
    for outside in ("10.2.0.1", "::ffff:10.2.0.1", "fd00:2::5", "127.0.0.1"):
        assert not is_public(ip_address(outside), networks)


def test_the_system_resolves_numbers_of_any_spelling_to_what_they_are() -> None:
    """What a check of the name would have to know, a check of its addresses does not."""
    for spelled in ("2130706433", "0x7f000001", "0177.0.0.1", "127.1", "localhost"):
        found = asyncio.run(resolve(spelled, 80))
        assert found
        assert not any(is_public(address) for address in found)
    with pytest.raises(Unresolved):
        asyncio.run(resolve("no.such.host.invalid", 80))
