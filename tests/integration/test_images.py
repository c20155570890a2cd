"""`/v1/images/generations` on a running gateway, by the official client."""

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import APIError, BadRequestError, OpenAI

from tests.integration.conftest import route, sample, wait_until
from tests.integration.image_gateway import KEY, image_gateway, leave, opened, spooled
from tests.servers import Gateway

URL = "/v1/images/generations"


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with image_gateway(tmp_path_factory.mktemp("spool")) as running:
        yield running


@pytest.fixture(scope="module")
def client(studio: Gateway) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{studio.url}/v1", api_key=KEY, max_retries=0, timeout=30) as found:
        yield found


@pytest.fixture(scope="module")
def http(studio: Gateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=studio.url, headers={"authorization": f"Bearer {KEY}"}, timeout=30) as found:
        yield found


def idle(studio: Gateway, model: str = "painter") -> bool:
    admission = route(studio, model).admission
    return admission.used == 0 and admission.waiting == 0


def test_a_picture_of_a_prompt(client: OpenAI) -> None:
    before = int(time.time())
    answer = client.images.generate(model="painter", prompt="a red apple", size="64x32", extra_body={"seed": 7})
    assert before <= answer.created <= int(time.time())
    assert answer.data is not None
    (image,) = answer.data
    picture = opened(image.b64_json)
    assert (picture.format, picture.size) == ("PNG", (64, 32))
    assert (answer.size, answer.output_format) == ("64x32", "png")
    assert image.url is None
    assert image.model_extra == {"seed": 7}
    assert image.model_dump()["revised_prompt"] is None
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.total_tokens) == (3, 4)
    assert answer.usage.input_tokens_details.text_tokens == 3


def test_nothing_but_a_prompt_is_needed(client: OpenAI) -> None:
    first, second = (client.images.generate(prompt="a cat").data for _ in range(2))
    assert first is not None
    assert second is not None
    assert opened(first[0].b64_json).tobytes() != opened(second[0].b64_json).tobytes()


def test_each_of_several_can_be_drawn_again_alone(client: OpenAI) -> None:
    answer = client.images.generate(model="painter", prompt="a cat", n=3, extra_body={"seed": 100})
    assert answer.data is not None
    seeds = [(image.model_extra or {})["seed"] for image in answer.data]
    assert seeds == [100, 101, 102]
    for image, seed in zip(answer.data, seeds, strict=True):
        alone = client.images.generate(model="painter", prompt="a cat", extra_body={"seed": seed}).data
        assert alone is not None
        assert alone[0].b64_json == image.b64_json
    assert len({image.b64_json for image in answer.data}) == 3


@pytest.mark.parametrize(("format", "name"), [("png", "PNG"), ("jpeg", "JPEG"), ("webp", "WEBP")])
def test_formats(client: OpenAI, format: Any, name: str) -> None:
    answer = client.images.generate(model="painter", prompt="a cat", output_format=format)
    assert answer.data is not None
    assert (opened(answer.data[0].b64_json).format, answer.output_format) == (name, format)


def test_compression_makes_it_smaller(client: OpenAI) -> None:
    def drawn(compression: int) -> str:
        answer = client.images.generate(
            prompt="a cat", output_format="jpeg", output_compression=compression, extra_body={"seed": 1}
        )
        assert answer.data is not None
        return answer.data[0].b64_json or ""

    assert len(drawn(10)) < len(drawn(95))


def test_every_parameter_reaches_the_model(http: httpx.Client) -> None:
    plain = http.post(URL, json={"prompt": "a cat", "seed": 1}).json()["data"][0]["b64_json"]
    for field in ({"negative_prompt": "dogs"}, {"guidance_scale": 7}, {"scheduler": "euler"}, {"size": "128x64"}):
        assert http.post(URL, json={"prompt": "a cat", "seed": 1} | field).json()["data"][0]["b64_json"] != plain
    same = {"user": "me", "safety_identifier": "x", "quality": "auto", "background": "opaque", "moderation": "low"}
    same |= {"size": "auto", "n": None, "stream": None, "output_compression": 100, "partial_images": 0}
    of_dall_e = {"quality": "standard", "style": "vivid", "response_format": "b64_json", "n": 1}
    of_gpt_image = {"background": "auto", "moderation": "auto", "quality": "auto", "output_format": "png"}
    for defaults in (same, of_dall_e, of_gpt_image):  # what clients say without being told to
        assert http.post(URL, json={"prompt": "a cat", "seed": 1} | defaults).json()["data"][0]["b64_json"] == plain


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": " "}, "prompt"),
        ({"prompt": "x" * 32_001}, "prompt"),
        ({"prompt": "a\0b"}, "prompt"),
        ({"prompt": "!bad"}, "prompt"),
        ({"negative_prompt": "a\0b"}, "negative_prompt"),
        ({"n": 0}, "n"),
        ({"n": 11}, "n"),
        ({"n": 3, "model": "narrow"}, "n"),
        ({"n": 2, "stream": True}, "n"),
        ({"size": "64"}, "size"),
        ({"size": "0x64"}, "size"),
        ({"size": "64x63"}, "size"),
        ({"size": "65x64"}, "size"),
        ({"size": "1024x1024"}, "size"),
        ({"size": "99999x99999"}, "size"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**53}, "seed"),
        ({"seed": "7"}, "seed"),
        ({"num_inference_steps": 0}, "num_inference_steps"),
        ({"num_inference_steps": 501}, "num_inference_steps"),
        ({"guidance_scale": -1}, "guidance_scale"),
        ({"guidance_scale": 101}, "guidance_scale"),
        ({"scheduler": "eular"}, "scheduler"),
        ({"response_format": "png"}, "response_format"),
        ({"response_format": "url", "stream": True}, "response_format"),
        ({"output_format": "gif"}, "output_format"),
        ({"output_compression": 101, "output_format": "jpeg"}, "output_compression"),
        ({"output_compression": 50}, "output_compression"),
        ({"partial_images": 4, "stream": True}, "partial_images"),
        ({"partial_images": 1}, "partial_images"),
        ({"progress": True}, "progress"),
        ({"quality": "hd"}, "quality"),
        ({"quality": "high"}, "quality"),
        ({"quality": "medium"}, "quality"),
        ({"quality": "low"}, "quality"),
        ({"style": "natural"}, "style"),
        ({"background": "transparent"}, "background"),
        ({"moderation": "high"}, "moderation"),
        ({"strength": 0.5}, "strength"),
        ({"image": "x"}, "image"),
        ({"model": 7}, "model"),
    ],
)
def test_what_is_wrong_is_a_400_that_names_it(http: httpx.Client, fields: dict[str, Any], param: str) -> None:
    answer = http.post(URL, json={"prompt": "a cat"} | fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert param in error["message"] or "prompt" in error["message"]


def test_what_there_is_not(http: httpx.Client, client: OpenAI) -> None:
    assert http.post(URL, json={"prompt": "a", "model": "nobody"}).json()["error"]["code"] == "model_not_found"
    assert http.post("/v1/images/variations", files={"image": b"x"}).status_code == 404
    assert http.post(URL, content=b"{", headers={"content-type": "application/json"}).status_code == 400
    assert http.post(URL, json={"prompt": "a"}, headers={"authorization": "Bearer wrong"}).status_code == 401
    with pytest.raises(BadRequestError, match="'size'"):
        client.images.generate(prompt="a cat", size="63x64")


def test_a_stream_has_previews_and_ends_with_the_picture(client: OpenAI) -> None:
    stream = client.images.generate(
        model="painter", prompt="a cat", stream=True, partial_images=3, size="64x32", extra_body={"seed": 5}
    )
    *partial, last = list(stream)
    assert [event.type for event in partial] == ["image_generation.partial_image"] * 3
    assert [event.partial_image_index for event in partial if event.type == "image_generation.partial_image"] == [
        0,
        1,
        2,
    ]
    assert last.type == "image_generation.completed"
    for event in (*partial, last):
        assert opened(event.b64_json).size == (64, 32)
        assert (event.size, event.output_format, event.quality, event.background) == ("64x32", "png", "auto", "opaque")
        assert abs(event.created_at - time.time()) < 60
    assert len({event.b64_json for event in (*partial, last)}) == 4
    assert (last.usage.input_tokens, last.usage.input_tokens_details.text_tokens) == (2, 2)
    plain = client.images.generate(model="painter", prompt="a cat", size="64x32", extra_body={"seed": 5}).data
    assert plain is not None
    assert plain[0].b64_json == last.b64_json
    assert (last.model_extra or {})["seed"] == 5


def test_steps_are_told_to_those_who_ask(http: httpx.Client, client: OpenAI) -> None:
    body = {"prompt": "a cat", "stream": True, "num_inference_steps": 3}
    quiet = http.post(URL, json=body)
    assert quiet.headers["content-type"].startswith("text/event-stream")
    assert [line for line in quiet.text.splitlines() if line.startswith("event")] == [
        "event: image_generation.completed"
    ]
    told = list(client.images.generate(prompt="a cat", stream=True, extra_body={"progress": True, **body}))
    assert [event.type for event in told] == ["image_generation.progress"] * 3 + ["image_generation.completed"]
    assert [(event.model_extra or {})["step"] for event in told[:-1]] == [1, 2, 3]
    assert "[DONE]" not in quiet.text


def test_a_failure_in_a_stream_is_an_error_event(client: OpenAI, http: httpx.Client, studio: Gateway) -> None:
    stream = client.images.generate(
        prompt="a cat !crash-step=4", stream=True, partial_images=1, extra_body={"num_inference_steps": 5}
    )
    with pytest.raises(APIError) as caught:
        list(stream)
    assert caught.value.code == "internal_error"
    assert "secret" not in str(caught.value)
    plain = http.post(URL, json={"prompt": "a cat !crash-step=1", "stream": True})
    assert (plain.status_code, plain.json()["error"]["code"]) == (500, "internal_error")
    wait_until(lambda: idle(studio))


def test_a_lost_worker_takes_its_images_along(client: OpenAI, studio: Gateway) -> None:
    with pytest.raises(APIError) as caught:
        client.images.generate(model="narrow", prompt="a cat !die")
    assert caught.value.code == "worker_lost"
    wait_until(lambda: route(studio, "narrow").ready)
    assert client.images.generate(model="narrow", prompt="a cat").data


@pytest.mark.parametrize("streamed", [False, True])
def test_a_client_that_leaves_cancels_its_images(studio: Gateway, http: httpx.Client, streamed: bool) -> None:
    def cancelled() -> float:
        labels = {"model": "painter", "pipeline": "image"}
        return sample(http.get("/metrics").text, "gateway_images_cancelled_total", **labels)

    before = cancelled()
    images = 1 if streamed else 4
    body = {"prompt": "a cat !step-ms=50", "num_inference_steps": 500, "n": images, "stream": streamed}
    leave(studio, httpx.Request("POST", studio.url + URL, json=body), lambda: not idle(studio))
    wait_until(lambda: idle(studio))
    wait_until(lambda: cancelled() - before == images)


def test_more_than_fits_waits_its_turn(client: OpenAI) -> None:
    answers = [client.images.generate(model="painter", prompt="a cat", n=8, size="64x64") for _ in range(2)]
    assert all(answer.data is not None and len(answer.data) == 8 for answer in answers)


def test_metrics_of_the_image_row(studio: Gateway, http: httpx.Client) -> None:
    labels = {"model": "painter", "pipeline": "image"}

    def now(name: str, **more: str) -> float:
        return sample(http.get("/metrics").text, f"gateway_{name}", **labels, **more)

    counted = ("images_total", "image_steps_total", "first_preview_seconds_count", "e2e_seconds_count")
    before = [now(name) for name in counted]
    rows, steps = now("image_step_seconds_count", rows="3-4"), now("step_seconds_count", kind="denoise")
    assert http.post(URL, json={"prompt": "a", "n": 3, "num_inference_steps": 5, "seed": 1}).status_code == 200
    streamed = http.post(URL, json={"prompt": "a", "stream": True, "partial_images": 2})
    assert streamed.text.count("partial_image_index") == 2
    wait_until(lambda: now("images_total") - before[0] == 4)
    assert [now(name) - old for name, old in zip(counted, before, strict=True)] == [4, 3 * 5 + 4, 1, 2]
    assert now("image_step_seconds_count", rows="3-4") - rows == 5
    assert now("step_seconds_count", kind="denoise") - steps == 9
    assert now("requests_total", outcome="stop") >= 2


def test_the_model_is_listed(client: OpenAI, studio: Gateway) -> None:
    assert {model.id for model in client.models.list()} == {"painter", "narrow"}
    card = client.models.retrieve("gpt-image-1").model_extra or {}
    assert (card["kind"], card["root"]) == ("image", "painter")
    assert route(studio, "painter").admission.total == 8
    assert not spooled(studio)
