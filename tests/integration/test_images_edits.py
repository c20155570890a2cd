"""`/v1/images/edits` on a running gateway, by the official client."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import APIError, OpenAI

from tests.integration.conftest import route, wait_until
from tests.integration.image_gateway import KEY, image_gateway, leave, opened, png, spooled
from tests.servers import Gateway

URL = "/v1/images/edits"
MAX_IMAGE_BYTES = 100_000


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with image_gateway(tmp_path_factory.mktemp("spool"), max_image_bytes=MAX_IMAGE_BYTES) as running:
        yield running


@pytest.fixture(scope="module")
def client(studio: Gateway) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{studio.url}/v1", api_key=KEY, max_retries=0, timeout=30) as found:
        yield found


@pytest.fixture(scope="module")
def http(studio: Gateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=studio.url, headers={"authorization": f"Bearer {KEY}"}, timeout=30) as found:
        yield found


@pytest.fixture(autouse=True)
def nothing_is_left(studio: Gateway) -> Iterator[None]:
    """Whatever a test does, its uploads end with its requests."""
    yield
    admission = route(studio, "painter").admission
    wait_until(lambda: not spooled(studio) and admission.used == 0)


def form(**fields: Any) -> list[tuple[str, Any]]:
    """A form; bytes are files."""
    fields = {"prompt": "a cat", "image": png()} | fields
    return [
        (name, (f"{name}.png", value) if isinstance(value, bytes) else (None, str(value)))
        for name, value in fields.items()
        if value is not None
    ]


def drawn(http: httpx.Client, **fields: Any) -> Any:
    answer = http.post(URL, files=form(seed=3, **fields))
    assert answer.status_code == 200, answer.text
    return opened(answer.json()["data"][0]["b64_json"])


def test_an_edit_starts_from_its_picture(client: OpenAI) -> None:
    answer = client.images.edit(
        model="painter", image=("red.png", png((64, 32))), prompt="a cat", n=2, extra_body={"seed": 9, "strength": 0.25}
    )
    assert answer.data is not None
    assert [(image.model_extra or {})["seed"] for image in answer.data] == [9, 10]
    assert (answer.size, answer.output_format) == ("64x32", "png")
    assert answer.data[0].b64_json != answer.data[1].b64_json
    red, _, blue = (sum(band.histogram()[128:]) for band in opened(answer.data[0].b64_json).split())
    assert red > 2 * blue


def test_every_field_of_a_form_reaches_the_model(http: httpx.Client) -> None:
    plain = drawn(http)
    empty = {
        "strength": "",
        "size": "auto",
        "n": 1,
        "stream": "false",
        "user": "me",
        "partial_images": 0,
        "quality": "",
        "background": "auto",
        "input_fidelity": "low",
    }
    assert drawn(http, **empty).tobytes() == plain.tobytes()
    mask = png(mode="RGBA", colour=(0, 0, 0, 0))
    for field in ({"strength": 0.9}, {"mask": mask}, {"image": png(colour=(0, 0, 255))}):
        assert drawn(http, **field).tobytes() != plain.tobytes(), field
    assert drawn(http, output_format="webp").format == "WEBP"


def test_a_list_of_one_picture_is_fine_and_of_two_is_not(client: OpenAI) -> None:
    picture = ("red.png", png())
    assert client.images.edit(model="painter", image=[picture], prompt="a cat").data
    with pytest.raises(APIError) as caught:
        client.images.edit(model="painter", image=[picture, picture], prompt="a cat")
    assert caught.value.param == "image"


def test_a_streamed_edit(client: OpenAI) -> None:
    stream = client.images.edit(
        image=("red.png", png()), prompt="a cat", stream=True, partial_images=2, extra_body={"progress": True}
    )
    events = list(stream)
    kinds = [event.type for event in events]
    assert kinds.count("image_edit.partial_image") == 2
    assert kinds.count("image_edit.progress") == 4  # type: ignore[comparison-overlap]
    assert events[-1].type == "image_edit.completed"
    assert opened(events[-1].b64_json).size == (64, 64)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"image": None}, "image"),
        ({"image": b""}, "image"),
        ({"image": b"no picture at all"}, "image"),
        ({"mask": b"no picture at all"}, "mask"),
        ({"mask": b""}, "mask"),
        ({"mask": png((32, 32), (0, 0, 0, 0), "RGBA")}, "mask"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": "x" * 32_001}, "prompt"),
        ({"n": 11}, "n"),
        ({"n": "two"}, "n"),
        ({"n": 2, "stream": "true"}, "n"),
        ({"seed": "x"}, "seed"),
        ({"strength": 1.5}, "strength"),
        ({"strength": 0}, "strength"),
        ({"strength": "nan"}, "strength"),
        ({"guidance_scale": "inf"}, "guidance_scale"),
        ({"stream": "perhaps"}, "stream"),
        ({"size": "big"}, "size"),
        ({"input_fidelity": "high"}, "input_fidelity"),
        ({"style": "vivid"}, "style"),
        ({"picture": png()}, "picture"),
        ({"output_format": "gif"}, "output_format"),
    ],
)
def test_what_is_wrong_is_a_400_that_names_it(http: httpx.Client, fields: dict[str, Any], param: str) -> None:
    answer = http.post(URL, files=form(**fields))
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert param in error["message"]


def test_a_field_that_is_sent_twice_is_refused(http: httpx.Client) -> None:
    answer = http.post(URL, files=[*form(), ("seed", (None, "1")), ("seed", (None, "2"))])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "seed")


@pytest.mark.parametrize("name", ["image", "mask"])
def test_a_picture_of_too_many_bytes_is_refused(http: httpx.Client, name: str) -> None:
    answer = http.post(URL, files=form(**{name: bytes(MAX_IMAGE_BYTES + 1)}))
    assert answer.status_code == 413
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("payload_too_large", name)
    assert str(MAX_IMAGE_BYTES) in error["message"]


def test_what_is_no_form_and_no_model(http: httpx.Client) -> None:
    assert http.post(URL, json={"prompt": "a cat"}).status_code == 415
    assert http.post(URL, files=form(model="nobody")).status_code == 404
    assert http.post(URL, files=form(), headers={"authorization": "Bearer wrong"}).status_code == 401


def test_a_client_that_leaves_takes_its_upload_along(studio: Gateway) -> None:
    slow = form(prompt="a cat !step-ms=50", num_inference_steps=500)
    admission = route(studio, "painter").admission
    leave(
        studio,
        httpx.Request("POST", studio.url + URL, files=slow),
        lambda: admission.used > 0 and spooled(studio) != [],
    )
    # `nothing_is_left` waits for less than the 25 s that the image would take.
