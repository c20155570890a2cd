"""What is fetched, over real sockets; and that nothing but an allowed host is ever spoken to."""

import asyncio
import gzip
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.uploads.fetch import Fetcher, FetchRefused, TooLarge
from tests.gateway.uploads.sites import PICTURE, PRIVATE, SITE, Names, Site, answer, fetcher, recorded, redirect, site

LIMIT = 10_000


@asynccontextmanager
async def the_web() -> AsyncIterator[tuple[Site, Site]]:
    """A public site, and one that is none of the caller's business: it may not be spoken to."""
    async with site() as public, site(PRIVATE) as private:
        private.pages = {"/": answer(b"secret"), "/a.png": answer(b"secret")}
        with recorded() as spoken:
            yield public, private
        assert {what for event, what in spoken if event == "connect"} <= {(SITE, public.port)}
        assert not [what for event, what in spoken if event == "getaddrinfo" and what != SITE]
        assert private.asked == []


def names(**more: str | list[str]) -> Names:
    return Names(good_example=SITE, **more)


async def refusal(fetching: Fetcher, url: str, max_bytes: int = LIMIT) -> str:
    with pytest.raises(FetchRefused) as refused:
        await fetching.fetch(url, max_bytes)
    return str(refused.value)


async def test_a_file_and_what_its_host_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://{PRIVATE}:9")
    monkeypatch.setenv("ALL_PROXY", f"http://{PRIVATE}:9")
    async with the_web() as (public, _):
        public.pages["/a.png?b=1"] = answer()
        took: list[int] = []
        found = await fetcher(names(), f"good.example:{public.port}").fetch(
            f"HTTP://GOOD.example.:{public.port}/a.png?b=1#part", LIMIT, took.append
        )
        assert found == PICTURE
        assert sum(took) == len(PICTURE)
        (head,) = public.asked
        lines = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
        assert head.startswith("GET /a.png?b=1 HTTP/1.1\r\n")
        assert lines.pop("User-Agent").startswith("multimodal-gateway/")
        assert lines == {
            "Host": f"good.example:{public.port}",
            "Accept": "image/*",
            "Accept-Encoding": "identity",
            "Connection": "close",
        }


@pytest.mark.parametrize(
    "page",
    [
        answer(content_length="", transfer_encoding="chunked", body=b"3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n"),
        answer(content_length="", body=b"abcdefg"),
        answer(content_length="7", content_encoding="identity", body=b"abcdefg"),
        b"HTTP/1.1 103 Early Hints\r\nlink: </b>\r\n\r\n" + answer(b"abcdefg"),
    ],
    ids=["chunked", "to-the-end", "identity", "early-hints"],
)
async def test_forms_of_an_answer(page: bytes) -> None:
    async with the_web() as (public, _):
        public.pages["/"] = page
        assert await fetcher(names(), f"good.example:{public.port}").fetch(f"http://good.example:{public.port}", 7) == (
            b"abcdefg"
        )


@pytest.mark.parametrize(
    "url",
    [
        *["http://127.0.0.2:PRIVATE/", "http://2130706434:PRIVATE/", "http://0x7f000002:PRIVATE/"],
        *["http://0177.0.0.2:PRIVATE/", "http://127.2:PRIVATE/", "http://[::ffff:127.0.0.2]:PRIVATE/"],
        *["http://[::1]:PRIVATE/", "http://localhost:PRIVATE/", "http://localhost.:PRIVATE/", "http://0:PRIVATE/"],
        *["http://good.example:PUBLIC@127.0.0.2:PRIVATE/", "http://good.example@127.0.0.2:PRIVATE/"],
        *["http://127.0.0.2:PRIVATE#@good.example:PUBLIC/", "http://127.0.0.2:PRIVATE?@good.example:PUBLIC/"],
        *["http://127.0.0.2:PRIVATE/@good.example:PUBLIC/", "http://127.0.0.2:PRIVATE\\@good.example:PUBLIC/"],
        *["http://good.example:PUBLIC\\@127.0.0.2:PRIVATE/", "http://good.example:PRIVATE/", "http://good.example/"],
        *["https://good.example/", "http://good.example.evil.example:PUBLIC/", "http://evil-good.example:PUBLIC/"],
        *["http://go\tod.example:PUBLIC/", "http://good.example:PUBLIC/\r\nHost:x", "http://good.example:PUBLIC /"],
        *["file:///etc/hostname", "file://good.example:PUBLIC/", "ftp://good.example:PUBLIC/", "gopher://x:PUBLIC/"],
        *["http://169.254.169.254/latest/meta-data/", "http://[fd00:ec2::254]/", "//good.example:PUBLIC/", "a.png"],
    ],
)
async def test_no_other_host_is_spoken_to_however_it_is_spelled(url: str) -> None:
    async with the_web() as (public, private):
        spelled = url.replace("PUBLIC", str(public.port)).replace("PRIVATE", str(private.port))
        for hosts in ([f"good.example:{public.port}"], []):
            resolving = names(localhost=PRIVATE)
            await refusal(fetcher(resolving, *hosts), spelled)
            assert resolving.asked == []
        assert public.asked == []


async def test_where_no_host_is_allowed_a_refusal_says_so() -> None:
    said = await refusal(fetcher(names()), "https://good.example/a.png")
    assert "server.image_hosts is empty" in said
    assert "data: URI" in said
    said = await refusal(fetcher(names(), "good.example"), "https://other.example/a.png")
    assert "'other.example'" in said
    assert "server.image_hosts" in said


@pytest.mark.parametrize(
    "addresses",
    [PRIVATE, "10.0.0.1", "::1", "::ffff:127.0.0.2", f"{SITE} {PRIVATE}", f"{SITE} ::1", "169.254.169.254", "0.0.0.0"],
)
async def test_a_host_that_is_allowed_must_have_public_addresses_alone(addresses: str) -> None:
    async with the_web() as (public, private):
        for port in (public.port, private.port):
            fetching = fetcher(names(inner_example=addresses), f"inner.example:{port}")
            said = await refusal(fetching, f"http://inner.example:{port}/")
            assert "not public" in said
            assert PRIVATE not in said
        assert public.asked == []


async def test_numbers_in_the_list_are_what_the_system_takes_them_for() -> None:
    """Not by a test's resolver."""
    async with site(PRIVATE) as private:
        for host in ("2130706434", "0x7f000002", "127.2", "localhost"):
            fetching = Fetcher([f"{host}:{private.port}"])
            assert "not public" in await refusal(fetching, f"http://{host}:{private.port}/")
        assert private.asked == []


async def test_a_name_that_changes_its_address_between_check_and_connection() -> None:
    async with the_web() as (public, _):
        public.pages["/"] = answer()
        rebinding = Names(good_example=[SITE, PRIVATE])
        fetching = fetcher(rebinding, f"good.example:{public.port}")
        assert await fetching.fetch(f"http://good.example:{public.port}/", LIMIT) == PICTURE
        assert rebinding.asked == ["good.example"]
        assert "not public" in await refusal(fetching, f"http://good.example:{public.port}/")


async def test_a_name_that_changes_its_address_between_redirects() -> None:
    async with the_web() as (public, _):
        public.pages = {"/": redirect("/a.png"), "/a.png": answer()}
        fetching = fetcher(Names(good_example=[SITE, PRIVATE]), f"good.example:{public.port}")
        assert "not public" in await refusal(fetching, f"http://good.example:{public.port}/")
        assert len(public.asked) == 1


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"])
async def test_redirects_are_followed(status: str) -> None:
    async with the_web() as (public, _):
        public.pages = {
            "/": redirect("b/", status),
            "/b/": redirect(f"http://other.example:{public.port}/c?d", status),
            "/c?d": redirect(f"//good.example:{public.port}/e", status),
            "/e": answer(),
        }
        listed = [f"good.example:{public.port}", f"other.example:{public.port}"]
        fetching = fetcher(names(other_example=SITE), *listed)
        assert await fetching.fetch(f"http://good.example:{public.port}/", LIMIT) == PICTURE
        hosts = [head.partition("Host: ")[2].partition(":")[0] for head in public.asked]
        assert hosts == ["good.example", "good.example", "other.example", "good.example"]
        public.pages["/e"] = redirect("/e", status)
        assert "redirected more than 3 times" in await refusal(fetching, f"http://good.example:{public.port}/")


@pytest.mark.parametrize(
    "to",
    [
        *["http://127.0.0.2:PRIVATE/", "//127.0.0.2:PRIVATE/", "http://inner.example:PRIVATE/", "http://localhost/"],
        *["http://[::1]:PRIVATE/", "http://good.example:PUBLIC@127.0.0.2:PRIVATE/", "https://good.example/"],
        *["http://good.example:PUBLIC\\@127.0.0.2:PRIVATE/", "file:///etc/hostname", "data:image/png;base64,AAAA"],
        *["ftp://good.example/", "http://[/", "http://169.254.169.254/", "http://good.example:PRIVATE/"],
    ],
)
async def test_a_redirect_leads_nowhere_else(to: str) -> None:
    async with the_web() as (public, private):
        public.pages["/"] = redirect(to.replace("PUBLIC", str(public.port)).replace("PRIVATE", str(private.port)))
        fetching = fetcher(names(inner_example=PRIVATE), f"good.example:{public.port}")
        assert "leads to an address that" in await refusal(fetching, f"http://good.example:{public.port}/")
        assert len(public.asked) == 1


async def drip(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9000\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)


async def drip_of_head(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"x: y\r\n")
        await writer.drain()
        await asyncio.sleep(0.02)


async def silence(writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


async def redirects_for_ever(writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(0.15)
    writer.write(redirect("/"))


@pytest.mark.parametrize("page", [drip, drip_of_head, silence, redirects_for_ever])
async def test_all_of_a_fetch_has_one_time(page: object) -> None:
    async with the_web() as (public, _):
        public.pages["/"] = page  # type: ignore[assignment]
        fetching = fetcher(names(), f"good.example:{public.port}", timeout=0.3)
        assert "within 0.3 s" in await refusal(fetching, f"http://good.example:{public.port}/")


async def endless(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(bytes(64 * 1024))
        await writer.drain()


async def endless_head(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nx: ")
    while True:
        writer.write(b"y" * 64 * 1024)
        await writer.drain()


async def test_bytes_are_bounded() -> None:
    async with the_web() as (public, _):
        fetching, url = fetcher(names(), f"good.example:{public.port}"), f"http://good.example:{public.port}/"
        public.pages["/"] = answer(content_length=str(LIMIT + 1), body=b"")  # and no body: it is not waited for
        with pytest.raises(TooLarge):
            await fetching.fetch(url, LIMIT)
        public.pages["/"] = endless
        with pytest.raises(TooLarge, match=f"{LIMIT} bytes"):
            await fetching.fetch(url, LIMIT)
        public.pages["/"] = answer(bytes(LIMIT))
        assert len(await fetching.fetch(url, LIMIT)) == LIMIT
        public.pages["/"] = endless_head
        assert "does not answer as it should" in await refusal(fetching, url)


async def test_nothing_is_decompressed() -> None:
    async with the_web() as (public, _):
        bomb = gzip.compress(bytes(10_000_000))
        public.pages["/"] = answer(bomb, content_encoding="gzip")
        fetching = fetcher(names(), f"good.example:{public.port}")
        said = await refusal(fetching, f"http://good.example:{public.port}/", len(bomb))
        assert "compresses" in said


@pytest.mark.parametrize(
    ("page", "says"),
    [
        (answer(b"", "404 Not Found"), "status 404"),
        (answer(b"no", "500 Oh"), "status 500"),
        (answer(PICTURE, "206 Partial Content"), "status 206"),
        (answer(b"", "304 Not Modified"), "status 304"),
        (answer(b"", "302 Found"), "status 302"),
        (answer(b""), "holds no data"),
        (b"SSH-2.0-server\r\n", "does not answer as it should"),
        (b"", "does not answer as it should"),
        (answer(b"abc", content_length="10"), "does not answer as it should"),
        (answer(b"abc", content_length="-1"), "does not answer as it should"),
        (answer(b"zz\r\nabc", content_length="", transfer_encoding="chunked"), "does not answer as it should"),
    ],
)
async def test_answers_without_a_picture(page: bytes, says: str) -> None:
    async with the_web() as (public, _):
        public.pages["/"] = page
        fetching = fetcher(names(), f"good.example:{public.port}")
        assert says in await refusal(fetching, f"http://good.example:{public.port}/")


async def test_a_host_that_is_not_there() -> None:
    assert "there is no host 'none.example'" in await refusal(fetcher(names(), "none.example"), "http://none.example/")
    async with the_web() as (public, _):
        closed = await asyncio.start_server(lambda *_: None, SITE, 0)
        port = closed.sockets[0].getsockname()[1]
        closed.close()
        await closed.wait_closed()
        fetching = fetcher(names(two_example=f"{SITE} {SITE}"), f"good.example:{public.port}", f"two.example:{port}")
        public.pages["/"] = answer()
        assert await fetching.fetch(f"http://good.example:{public.port}/", LIMIT) == PICTURE
    assert "does not answer as it should" in await refusal(fetching, f"http://two.example:{port}/")


# --- TLS --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of good.example, with its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    path = tmp_path_factory.mktemp("tls") / "good.pem"
    subject = ["-subj", "/CN=good.example", "-addext", "subjectAltName=DNS:good.example"]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(path) + ".key"]
    subprocess.run(["openssl", "req", "-x509", *key, *subject, "-out", str(path)], check=True, capture_output=True)
    path.write_bytes(path.read_bytes() + Path(f"{path}.key").read_bytes())
    return path


async def test_over_tls_the_name_is_asked_for_and_the_certificate_checked(certificate: Path) -> None:
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate)
    wanted: list[str | None] = []
    serving.sni_callback = lambda _, name, __: wanted.append(name)
    async with site(context=serving) as public:
        public.pages["/"] = answer()
        trusting = ssl.create_default_context(cafile=str(certificate))
        resolving = Names(good_example=SITE, other_example=SITE)
        listed = [f"good.example:{public.port}", f"other.example:{public.port}"]
        fetching = fetcher(resolving, *listed, context=trusting)
        assert await fetching.fetch(f"https://good.example:{public.port}/", LIMIT) == PICTURE
        assert wanted == ["good.example"]
        assert f"Host: good.example:{public.port}" in public.asked[0]
        said = await refusal(fetching, f"https://other.example:{public.port}/")  # the certificate is not its own
        assert "does not answer as it should" in said
        said = await refusal(fetcher(resolving, *listed), f"https://good.example:{public.port}/")  # nobody signed it
        assert "does not answer as it should" in said
        assert len(public.asked) == 1
