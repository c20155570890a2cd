"""Chats about images over a tiny model that sees, from the socket to the tower."""

import base64
import io
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway.config.settings import ModelSettings, ServerSettings, Settings
from pipelines.messages.text import TextOptions
from tests import vision_models
from tests.pipelines.media import odd_pictures
from tests.servers import Gateway, gateway_thread

PIXELS = 4_000_000
FIELD = "messages[0].content[1].image_url.url"


@pytest.fixture(scope="module")
def sighted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = vision_models.build("llava", tmp_path_factory.mktemp("llava"))
    model = ModelSettings(
        name="sighted",
        source=str(folder),
        kind="text",
        pipeline="pipelines.text.pipeline:TextPipeline",
        device="cpu",
        dtype="float32",
        options=TextOptions(max_image_pixels=PIXELS),
    )
    spool = str(tmp_path_factory.mktemp("spool"))
    with gateway_thread(Settings(server=ServerSettings(port=0, spool_dir=spool), models=[model])) as running:
        yield running


@pytest.fixture(scope="module")
def http(sighted: Gateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=sighted.url, timeout=60) as client:
        yield client


def body(url: str, **fields: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": url}}]
    messages = [{"role": "user", "content": content}]
    return {"model": "sighted", "messages": messages, "temperature": 0, "max_tokens": 4, **fields}


def uri(data: bytes, type: str = "image/png") -> str:
    return f"data:{type};base64,{base64.b64encode(data).decode()}"


def ask(http: httpx.Client, data: bytes, **fields: Any) -> httpx.Response:
    return http.post("/v1/chat/completions", json=body(uri(data), **fields))


def encoded(format: str, **options: Any) -> bytes:
    file = io.BytesIO()
    odd_pictures.quarters((60, 40)).save(file, format, **options)
    return file.getvalue()


def test_the_same_pixels_have_the_same_answer_whatever_they_come_in(http: httpx.Client) -> None:
    first = ask(http, encoded("PNG"), logprobs=True, top_logprobs=5)
    assert first.status_code == 200, first.text
    (choice,) = first.json()["choices"]
    for data in (encoded("WEBP", lossless=True), encoded("BMP"), encoded("PNG", compress_level=0)):
        again = ask(http, data, logprobs=True, top_logprobs=5)
        assert again.json()["choices"] == [choice]
    unseen = http.post("/v1/chat/completions", json={**body(""), "messages": [{"role": "user", "content": "a"}]})
    assert unseen.status_code == 200
    assert first.json()["usage"]["prompt_tokens"] > unseen.json()["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    "name", ["png-palette-clear", "png-16-bit-grey", "jpeg-ycck", "turned-6", "gif-animated", "avif"]
)
def test_odd_pictures_are_seen(http: httpx.Client, name: str) -> None:
    assert ask(http, odd_pictures.fine()[name].data).status_code == 200


def test_what_is_no_picture_costs_its_request_alone(http: httpx.Client) -> None:
    for name, (data, _) in odd_pictures.refused().items():
        refused = ask(http, data, stream=True)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, FIELD), name
        assert FIELD in refused.json()["error"]["message"], name
    large = ask(http, odd_pictures.png_header(2000, 2001))
    assert f"more than the {PIXELS} that are accepted" in large.json()["error"]["message"]
    assert ask(http, encoded("PNG")).status_code == 200


def test_models_say_that_they_see(http: httpx.Client) -> None:
    (model,) = http.get("/v1/models").json()["data"]
    assert model["input_modalities"] == ["text", "image"]
