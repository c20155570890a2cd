"""Addresses as they are read, and the hosts that are listed."""

import pytest

from gateway.location import BadLocation, Hosts, parse_host, parse_location


@pytest.mark.parametrize(
    ("url", "host", "port", "target"),
    [
        ("https://images.example.com/a.png", "images.example.com", 443, "/a.png"),
        ("http://images.example.com", "images.example.com", 80, "/"),
        ("HTTPS://Images.Example.COM./A.png?b=C#d", "images.example.com", 443, "/A.png?b=C"),
        ("https://images.example.com:8443?x", "images.example.com", 8443, "/?x"),
        ("https://images.example.com:/", "images.example.com", 443, "/"),
        ("https://images.example.com/a@b:c//d", "images.example.com", 443, "/a@b:c//d"),
        ("https://images.example.com#@evil.example", "images.example.com", 443, "/"),
        ("https://images.example.com?@evil.example", "images.example.com", 443, "/?@evil.example"),
        ("https://bücher.example/ä?ö", "xn--bcher-kva.example", 443, "/%C3%A4?%C3%B6"),
        ("https://xn--bcher-kva.example/", "xn--bcher-kva.example", 443, "/"),
        ("https://images。example。com/", "images.example.com", 443, "/"),
        ("https://192.0.2.7/", "192.0.2.7", 443, "/"),
        ("http://[2001:DB8:0::7]:81/", "2001:db8::7", 81, "/"),
    ],
)
def test_what_is_read(url: str, host: str, port: int, target: str) -> None:
    location = parse_location(url)
    assert (location.host, location.port, location.target) == (host, port, target)
    assert parse_location(location.url) == location


@pytest.mark.parametrize(
    "url",
    [
        *[
            "",
            "images.example.com/a.png",
            "//images.example.com/",
            "https:/images.example.com",
            "https:images.example.com",
        ],
        *["file:///etc/hostname", "file://images.example.com/x", "ftp://images.example.com/", "gopher://x/", "blob:x"],
        *["javascript://images.example.com/", "view-source:https://images.example.com/", "httpx://images.example.com/"],
        *["http://good.example@evil.example/", "http://good.example:80@evil.example/", "http://@evil.example/"],
        *["http://a@good.example/", "http://user:pass@good.example/"],
        *["http://good.example\\@evil.example/", "http:\\\\good.example/", "http://good.example\\.evil.example/"],
        *["http://good.example\t/", "http://good.ex\nample/", "ht\ttp://good.example/", "http://good.example/a b"],
        *[" http://good.example/", "http://good.example/ ", "http://good.example/\x00", "http://good.example/\x7f"],
        *["http:///", "http://", "http://:80/", "http://./", "http://a..b/", "http://-a.example/", "http://a%2eb/"],
        *["http://good.example:0/", "http://good.example:65536/", "http://good.example:x/", "http://good.example:8 0/"],
        *[
            "http://[::1/",
            "http://::1/",
            "http://[::1]x/",
            "http://[::g]/",
            "http://[fe80::1%25eth0]/",
            "http://[v1.a]/",
        ],
        *["http://☃/" + "☃" * 300, f"http://{'a' * 64}.example/", f"http://{'a.' * 130}example/"],
        *["http://good.example／@evil.example/", "http://a" + "/" * 9000, "http://ex＠ample.com/"],
    ],
)
def test_what_is_not(url: str) -> None:
    with pytest.raises(BadLocation):
        parse_location(url)


@pytest.mark.parametrize(
    ("listed", "url"),
    [
        ("images.example.com", "https://images.example.com/a"),
        ("images.example.com", "http://images.example.com:80/a"),
        ("Images.Example.com.", "https://IMAGES.example.com./a"),
        ("bücher.example", "https://xn--bcher-kva.example/"),
        ("xn--bcher-kva.example", "https://BÜCHER.example/"),
        ("images.example.com:8443", "https://images.example.com:8443/a"),
        ("images.example.com:443", "https://images.example.com/a"),
        ("[2001:db8::7]", "https://[2001:db8:0::7]/"),
        ("[2001:db8::7]:81", "http://[2001:db8::7]:81/"),
    ],
)
def test_listed(listed: str, url: str) -> None:
    assert parse_location(url) in Hosts([listed])


@pytest.mark.parametrize(
    ("listed", "url"),
    [
        ("images.example.com", "https://images.example.com:8443/a"),
        ("images.example.com", "https://images.example.com:80/a"),
        ("images.example.com", "http://images.example.com:443/a"),
        ("images.example.com:8443", "https://images.example.com/a"),
        ("images.example.com", "https://example.com/a"),
        ("example.com", "https://images.example.com/a"),
        ("example.com", "https://example.com.evil.example/a"),
        ("example.com", "https://evil-example.com/a"),
        ("example.com", "https://evil.example/example.com"),
        ("localhost", "http://127.0.0.1/"),
        ("127.0.0.1", "http://2130706433/"),
        ("127.0.0.1", "http://0x7f.1/"),
        ("127.0.0.1", "http://0177.0.0.1/"),
        ("127.0.0.1", "http://[::ffff:127.0.0.1]/"),
    ],
)
def test_not_listed(listed: str, url: str) -> None:
    assert parse_location(url) not in Hosts([listed])
    assert parse_location(url) not in Hosts([])


@pytest.mark.parametrize("host", ["", "https://example.com", "example.com/", "*.example.com", "a b", "a@b", "a:b:c"])
def test_what_can_t_be_listed(host: str) -> None:
    with pytest.raises(BadLocation):
        parse_host(host)
