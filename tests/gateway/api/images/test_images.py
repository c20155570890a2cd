"""`/v1/images/generations` and `/edits` on the wire, over a worker whose answers the test speaks."""

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.api.images.request import GenerationBody, parse_form, to_image_request
from gateway.errors import ApiError
from pipelines.messages.frames import Accepted, Failed
from pipelines.messages.image import Denoised, ImageOptions, ImageRequest, Picture, Preview
from tests.gateway.scripted import ScriptedBackend, ScriptedCall
from tests.gateway.scripted_app import AppHost, ScriptedApp

pytestmark = pytest.mark.asyncio(loop_scope="module")

GENERATIONS, EDITS = "/v1/images/generations", "/v1/images/edits"


class ScriptedImages(ScriptedBackend):
    kind = "image"


def wire(call: ScriptedCall) -> ImageRequest:
    request = call.call.request
    assert isinstance(request, ImageRequest)
    return request


def picture(call: ScriptedCall, index: int = 0) -> Picture:
    return Picture(call.call.id, index, 40 + index, 16, 8, b"picture %d" % index)


def left(it: ScriptedApp) -> list[Path]:
    """Files in the spool."""
    return [each for each in Path(it.gateway.settings.server.spool_dir).rglob("*") if each.suffix == ".png"]


def answered(call: ScriptedCall) -> None:
    """The last picture first."""
    call.accept()
    for index in reversed(range(wire(call).n)):
        call.say(Denoised(call.call.id, index, 1, 1), picture(call, index))
    call.say(call.done())


@pytest.fixture
def it(server: AppHost) -> ScriptedApp:
    return server.app(ScriptedImages(slots=12, answer=answered), kind="image")


async def generate(it: ScriptedApp, **fields: Any) -> Any:
    return await it.client.post(GENERATIONS, json={"model": "scripted", "prompt": "a cat"} | fields)


def events(text: str) -> list[dict[str, Any]]:
    """The payloads of a stream, whose names are their types."""
    found = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


async def test_the_body_is_what_the_model_is_asked(it: ScriptedApp) -> None:
    fields = {"n": 3, "size": "640x384", "seed": 7, "num_inference_steps": 9, "guidance_scale": 2, "scheduler": "lcm"}
    fields |= {"negative_prompt": "dogs", "output_format": "webp", "output_compression": 0}
    assert (await generate(it, **fields)).status_code == 200
    assert wire(it.backend.calls[-1]) == ImageRequest(
        prompt="a cat",
        negative_prompt="dogs",
        n=3,
        width=640,
        height=384,
        seed=7,
        steps=9,
        guidance_scale=2.0,
        scheduler="lcm",
        progress=True,
        output_format="webp",
        output_compression=0,
    )
    await generate(it, **dict.fromkeys(fields))
    assert wire(it.backend.calls[-1]) == ImageRequest(prompt="a cat", progress=True)
    await generate(it, stream=True, partial_images=2)
    assert wire(it.backend.calls[-1]) == ImageRequest(prompt="a cat", progress=True, partial_images=2)


async def test_pictures_are_in_their_order_whenever_they_come(it: ScriptedApp) -> None:
    answer = await generate(it, n=3)
    body = answer.json()
    assert [base64.b64decode(item["b64_json"]) for item in body["data"]] == [b"picture 0", b"picture 1", b"picture 2"]
    assert [item["seed"] for item in body["data"]] == [40, 41, 42]
    assert all(item["revised_prompt"] is None and "url" not in item for item in body["data"])
    assert (body["size"], body["output_format"]) == ("16x8", "png")
    assert body["usage"] == {
        "input_tokens": 3,
        "output_tokens": 2,
        "total_tokens": 5,
        "input_tokens_details": {"text_tokens": 3, "image_tokens": 0},
        "output_tokens_details": {"text_tokens": 0, "image_tokens": 2},
    }
    assert "total=" in answer.headers["x-gateway-timing"]


async def test_events_of_a_stream(server: AppHost) -> None:
    def speak(call: ScriptedCall) -> None:
        id = call.call.id
        call.say(Accepted(id, 3, 0.0))
        call.say(Denoised(id, 0, 1, 2), Preview(id, 0, 0, 16, 8, b"so far"))
        call.say(Denoised(id, 0, 2, 2), picture(call), call.done())

    it = server.app(ScriptedImages(answer=speak), kind="image")
    partial, completed = events((await generate(it, stream=True, partial_images=1, output_format="jpeg")).text)
    created = partial.pop("created_at")
    assert isinstance(created, int)
    assert partial == {
        "type": "image_generation.partial_image",
        "b64_json": base64.b64encode(b"so far").decode(),
        "partial_image_index": 0,
        "size": "16x8",
        "output_format": "jpeg",
        "quality": "auto",
        "background": "opaque",
    }
    assert completed["type"] == "image_generation.completed"
    assert base64.b64decode(completed["b64_json"]) == b"picture 0"
    assert (completed["seed"], completed["usage"]["total_tokens"]) == (40, 5)
    assert completed["timing"]["total"] > 0
    told = events((await generate(it, stream=True, progress=True, partial_images=1)).text)
    assert [event["type"].split(".")[1] for event in told] == ["progress", "partial_image", "progress", "completed"]
    assert told[0] == {"type": "image_generation.progress", "step": 1, "steps": 2}


async def test_an_image_that_takes_its_steps_is_not_taken_for_one_that_hangs(server: AppHost) -> None:
    def begin(call: ScriptedCall) -> None:
        call.accept()
        call.say(Denoised(call.call.id, 0, 1, 50))

    it = server.app(ScriptedImages(answer=begin), kind="image", first_event_timeout_s=0.3)
    asking = asyncio.create_task(generate(it))
    call = await it.backend.opened()
    await asyncio.sleep(0.6)
    call.say(picture(call), call.done())
    assert (await asking).status_code == 200
    it = server.app(ScriptedImages(answer=lambda call: call.accept()), kind="image", first_event_timeout_s=0.3)
    assert (await generate(it)).status_code == 504


async def test_numbers_that_are_none_are_told_as_such(server: AppHost) -> None:
    it = server.app(
        ScriptedImages(answer=lambda call: call.fail("invalid_output", "the image is no number")), kind="image"
    )
    answer = await generate(it)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "invalid_output")
    assert answer.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("fields", [{}, {"response_format": "url"}, {"stream": True}, {"n": 2}])
async def test_an_answer_without_its_picture_is_an_error(server: AppHost, fields: dict[str, Any]) -> None:
    it = server.app(ScriptedImages(answer=lambda call: call.say(call.done())), kind="image")
    answer = await generate(it, **fields)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    assert it.registry.outcomes == ["internal_error"]


async def test_an_upload_lies_where_the_worker_is_told_and_ends_with_it(server: AppHost) -> None:
    seen: list[tuple[bytes, bytes]] = []

    def look(call: ScriptedCall) -> None:
        request = wire(call)
        assert request.image is not None
        assert request.mask is not None
        seen.append((Path(request.image).read_bytes(), Path(request.mask).read_bytes()))
        answered(call)

    it = server.app(ScriptedImages(answer=look), kind="image")
    files = {"mask": ("m.png", b"the mask"), "image": ("i.png", b"the image")}
    answer = await it.client.post(EDITS, data={"prompt": "a cat", "strength": "0.5"}, files=files)
    assert answer.status_code == 200, answer.text
    assert seen == [(b"the image", b"the mask")]
    request = wire(it.backend.calls[-1])
    assert request.strength == 0.5
    assert not left(it)


async def test_an_address_begins_with_the_name_that_the_client_used(it: ScriptedApp) -> None:
    fields = {"prompt": "a cat", "response_format": "url"}
    for host, begin in (("localhost:81", "http://localhost:81/"), ("[::1]", "http://[::1]/")):
        answer = await it.client.post(GENERATIONS, json=fields, headers={"host": host})
        assert answer.json()["data"][0]["url"].startswith(f"{begin}v1/images/files/")


async def test_a_model_of_another_kind_is_named(server: AppHost) -> None:
    it = server.app(ScriptedBackend(), kind="text")
    answer = await generate(it)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")
    answer = await it.client.post(GENERATIONS, json={"prompt": "a cat"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    assert "image" in answer.json()["error"]["message"]


async def test_a_preview_is_timed_and_images_given_up_are_counted(server: AppHost) -> None:
    it = server.app(ScriptedImages(), kind="image")
    asking = asyncio.create_task(generate(it, n=3))
    call = await it.backend.opened()
    call.accept()
    call.say(Denoised(call.call.id, 0, 1, 9), Preview(call.call.id, 0, 0, 8, 8, b"x"), picture(call))
    asking.cancel()
    async with asyncio.timeout(5):
        while not it.registry.closed:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    (line,) = it.registry.closed
    assert call.aborted
    assert (line.images, line.pictures, line.image_steps, line.images_given_up) == (3, 1, 1, 2)
    first = line.first_preview
    assert first is not None
    call.say(Preview(call.call.id, 0, 1, 8, 8, b"x"))
    assert line.first_preview == first
    call.say(picture(call, 1))  # what still comes is counted, and kept by nobody
    assert line.pictures == 2
    call.fail("cancelled")
    assert [type(event) for event in await call.session.read()] == [Failed]


async def test_two_prompts_in_any_script_fit_into_a_form(it: ScriptedApp) -> None:
    fields = {"prompt": "画" * 32_000, "negative_prompt": "犬" * 32_000}
    answer = await it.client.post(EDITS, data=fields, files={"image": ("i.png", b"x")})
    assert answer.status_code == 200, answer.text
    answer = await it.client.post(EDITS, data={"prompt": "x" * 400_000}, files={"image": ("i.png", b"x")})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")


# --- without a wire ---------------------------------------------------------------------------------------------------


async def test_the_model_s_own_limits_are_told() -> None:
    options = ImageOptions(max_images=2, max_steps=10)

    def refusal(**fields: Any) -> str:
        body = msgspec.convert({"prompt": "a"} | fields, GenerationBody)
        with pytest.raises(ApiError) as caught:
            to_image_request(body, options)
        return caught.value.message

    assert "between 1 and 10 " in refusal(num_inference_steps=11)
    assert "between 1 and 2 " in refusal(n=3)


@pytest.mark.parametrize(
    ("model", "size", "nearest"),
    [
        ("dall-e-3", "1792x1024", True),
        ("gpt-image-1", "1024x1024", True),
        ("gpt-image-1", "1000x1000", False),  # no client of OpenAI's says that by itself
        ("gpt-image-1", None, False),
        ("sd-turbo", "1024x1024", False),
        (None, "1024x1024", False),
    ],
)
async def test_a_name_of_openais_gets_the_nearest_of_its_sizes(model: Any, size: Any, nearest: bool) -> None:
    body = GenerationBody(prompt="a cat", model=model, size=size)
    assert to_image_request(body, ImageOptions()).nearest == nearest


async def test_a_form_says_numbers_in_letters() -> None:
    fields = {"prompt": ["7"], "seed": ["7"], "strength": ["0.5"], "stream": ["True"], "mask": [""], "user": ["8"]}
    form = parse_form(fields)
    assert (form.prompt, form.seed, form.strength, form.stream, form.user) == ("7", 7, 0.5, True, "8")
