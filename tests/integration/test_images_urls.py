"""Answers with addresses: pictures that can be fetched for a while, and by those alone who were told."""

import base64
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from tests.integration.conftest import wait_until
from tests.integration.image_gateway import KEY, image_gateway, spooled
from tests.servers import Gateway

URL = "/v1/images/generations"
MAX_FILES = 6


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with image_gateway(tmp_path_factory.mktemp("spool"), image_url_max_files=MAX_FILES) as running:
        yield running


@pytest.fixture(scope="module")
def http(studio: Gateway) -> Iterator[httpx.Client]:
    """Has a key."""
    with httpx.Client(base_url=studio.url, headers={"authorization": f"Bearer {KEY}"}, timeout=30) as found:
        yield found


@pytest.fixture(scope="module")
def page() -> Iterator[httpx.Client]:
    """A web page, so to speak: has no key."""
    with httpx.Client(timeout=30) as found:
        yield found


def urls(http: httpx.Client, **fields: Any) -> list[str]:
    answer = http.post(URL, json={"prompt": "a cat", "response_format": "url"} | fields)
    assert answer.status_code == 200, answer.text
    return [image["url"] for image in answer.json()["data"]]


def test_an_address_is_on_this_host_and_needs_no_key(studio: Gateway, page: httpx.Client) -> None:
    with OpenAI(base_url=f"{studio.url}/v1", api_key=KEY, max_retries=0, timeout=30) as client:
        told = client.images.generate(prompt="a cat", n=2, response_format="url", extra_body={"seed": 4})
        shown = client.images.generate(prompt="a cat", n=2, extra_body={"seed": 4})
    assert told.data is not None
    assert shown.data is not None
    assert (told.size, told.output_format) == ("64x64", "png")
    for image, same in zip(told.data, shown.data, strict=True):
        assert image.b64_json is None
        assert image.url is not None
        assert image.url.startswith(f"{studio.url}/v1/images/files/")
        fetched = page.get(image.url)
        assert (fetched.status_code, fetched.headers["content-type"]) == (200, "image/png")
        assert fetched.headers["x-content-type-options"] == "nosniff"
        assert 0 < int(fetched.headers["cache-control"].split("max-age=")[1].split(",")[0]) <= 3600
        assert base64.b64decode(same.b64_json or "") == fetched.content
        head = page.head(image.url)
        assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize("format", ["png", "jpeg", "webp"])
def test_the_content_type_is_the_format_s(http: httpx.Client, page: httpx.Client, format: str) -> None:
    (url,) = urls(http, output_format=format)
    assert url.endswith(f".{format}")
    assert page.get(url).headers["content-type"] == f"image/{format}"


def test_nobody_finds_one_that_was_not_told(studio: Gateway, http: httpx.Client, page: httpx.Client) -> None:
    (url,) = urls(http)
    token = url.rsplit("/", 1)[1].removesuffix(".png")
    assert len(token) >= 43
    files = f"{studio.url}/v1/images/files"
    for other in (f"{token[:-1]}.png", f"{token}.jpeg", f"{'x' * 43}.png", f"{token[:-1]}A-.png"):
        assert page.get(f"{files}/{other}").status_code == 404
        assert page.get(f"{files}/{other}").json()["error"]["code"] == "not_found"
    name = next(path.name for path in spooled(studio))
    assert http.get(f"{files}/{name}").status_code == 404  # what it is called on the disk is no secret
    for listing in (files, f"{files}/"):
        assert page.get(listing).status_code == 401
        assert http.get(listing).status_code == 404
    # Open is the file alone, however its address is spelled.
    for path in ("/v1/images/files/../generations", "/v1/images/files/%2e%2e/generations", f"/v1/images/files/{token}"):
        refused = httpx.Request("POST", studio.url, json={"prompt": "a"})
        refused.url = refused.url.copy_with(raw_path=path.encode())
        assert page.send(refused).status_code == 401, path


def test_a_public_url_is_what_addresses_begin_with(tmp_path: Path) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    with (
        image_gateway(tmp_path, public_url="https://images.example/gateway/") as behind_a_proxy,
        httpx.Client(base_url=behind_a_proxy.url, headers=headers, timeout=30) as http,
    ):
        (url,) = urls(http)
        assert url.startswith("https://images.example/gateway/v1/images/files/")


def test_who_names_no_host_gets_the_server_s_address(studio: Gateway, page: httpx.Client) -> None:
    body = json.dumps({"prompt": "a cat", "response_format": "url"})
    head = f"POST {URL} HTTP/1.0\r\nauthorization: Bearer {KEY}\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.create_connection(studio.address, timeout=30) as connection:
        connection.sendall(f"{head}{body}".encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    (image,) = json.loads(answer.partition(b"\r\n\r\n")[2])["data"]
    assert image["url"].startswith(f"{studio.url}/v1/images/files/")
    assert page.get(image["url"]).status_code == 200


def test_the_oldest_go_first(studio: Gateway, http: httpx.Client, page: httpx.Client) -> None:
    first = urls(http, n=2)
    later = urls(http, n=MAX_FILES - 1)
    assert [page.get(url).status_code for url in (*first, *later)] == [404] + [200] * MAX_FILES
    assert len(spooled(studio)) == MAX_FILES


def test_more_than_is_kept_in_all_is_refused(studio: Gateway, http: httpx.Client) -> None:
    kept = len(spooled(studio))
    answer = http.post(URL, json={"prompt": "a", "response_format": "url", "n": MAX_FILES + 1})
    assert (answer.status_code, answer.json()["error"]["code"]) == (507, "spool_full")
    assert len(spooled(studio)) == kept


def test_addresses_expire_and_nothing_stays(tmp_path: Path, page: httpx.Client) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    with (
        image_gateway(tmp_path, image_url_ttl_s=0.5) as brief,
        httpx.Client(base_url=brief.url, headers=headers, timeout=30) as http,
    ):
        told = urls(http, n=2)
        wait_until(lambda: not spooled(brief))
        assert [page.get(url).status_code for url in told] == [404, 404]


def test_pictures_go_with_the_server(tmp_path: Path) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    with (
        image_gateway(tmp_path) as running,
        httpx.Client(base_url=running.url, headers=headers, timeout=30) as http,
    ):
        urls(http)
        assert spooled(running)
    assert not list(tmp_path.rglob("*.png"))
