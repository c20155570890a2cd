"""`/v1/chat/completions`: images, over a worker whose answers the test speaks."""

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any, cast

import msgspec
import pytest
import pytest_asyncio

from gateway.backends.base import State
from gateway.requests.admission import Admission
from gateway.requests.exchange import Job, Terms
from gateway.requests.routing import Route
from pipelines.messages.sampling import Sampling
from pipelines.messages.text import ChatPrompt, ImagePart, Message, TextOptions, TextPart, TextRequest
from tests.gateway.scripted import SETTINGS, ScriptedBackend, ScriptedCall, ScriptedFleet
from tests.gateway.scripted_app import CHAT, AppHost, ScriptedApp, app_host
from tests.gateway.uploads.sites import PICTURE, PRIVATE, SITE, Site, answer, site
from tests.servers import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

FILE = b"\x89PNG\r\n\x1a\n and so on"
URL = "data:image/png;base64," + base64.b64encode(FILE).decode()
LIMITS = {"max_image_bytes": 1000, "max_request_image_bytes": 1500}
TEXT = {"type": "text", "text": "What is it?"}


def hello(call: ScriptedCall) -> None:
    call.text("Hello")
    call.end()


def image(url: Any = URL, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **more}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def web() -> AsyncIterator[Site]:
    async with site() as found:
        found.pages = {"/a.png": answer(), "/large": answer(bytes(1001)), "/none": answer(b"", "404 Not Found")}
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def limited(spool_dir: str, web: Site) -> AsyncIterator[AppHost]:
    """One with small limits that may fetch from one host."""
    hosts = {"image_hosts": [f"{SITE}:{web.port}"], "private_image_networks": [SITE]}
    async with app_host(spool_dir, **LIMITS, **hosts) as running:
        yield running


def seeing(server: AppHost, **model: object) -> ScriptedApp:
    return server.app(ScriptedBackend(answer=hello, images=True), **model)


@pytest.fixture
def it(server: AppHost) -> ScriptedApp:
    return seeing(server)


def messages(it: ScriptedApp) -> list[Message]:
    """Of the one request that came through."""
    (call,) = it.backend.calls
    request = call.call.request
    assert isinstance(request, TextRequest)
    (prompt,) = request.prompts
    assert isinstance(prompt, ChatPrompt)
    return prompt.messages


async def test_images_and_texts_in_their_order(it: ScriptedApp) -> None:
    answered = await it.chat([TEXT, image(), {"type": "image_url", "image_url": URL}, image(detail="low"), TEXT])
    assert answered.status_code == 200, answered.text
    at = "messages[0].content"
    assert messages(it)[0].content == [
        TextPart("What is it?"),
        ImagePart(FILE, "auto", f"{at}[1].image_url.url"),
        ImagePart(FILE, "auto", f"{at}[2].image_url"),
        ImagePart(FILE, "low", f"{at}[3].image_url.url"),
        TextPart("What is it?"),
    ]


@pytest.mark.parametrize(("said", "detail"), [(None, "auto"), ("auto", "auto"), ("low", "low"), ("high", "high")])
async def test_how_closely_it_is_looked_at(it: ScriptedApp, said: str | None, detail: str) -> None:
    assert (await it.chat([image(detail=said)])).status_code == 200
    assert messages(it)[0].content == [ImagePart(FILE, detail, "messages[0].content[0].image_url.url")]  # type: ignore[arg-type]


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
async def test_in_every_role(it: ScriptedApp, role: str) -> None:
    turns = [{"role": "user", "content": "Hi"}, {"role": role, "content": [image()], "tool_call_id": "a"}]
    answered = await it.client.post(CHAT, json={"model": "scripted", "messages": turns})
    assert answered.status_code == 200, answered.text
    assert messages(it)[1].content == [ImagePart(FILE, "auto", "messages[1].content[0].image_url.url")]


async def test_a_stream(it: ScriptedApp) -> None:
    answered = await it.chat([image()], stream=True)
    assert answered.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert "Hello" in answered.text


async def test_what_clients_say_beside_the_address_has_no_effect(it: ScriptedApp) -> None:
    assert (await it.chat([{**image(format="image/png"), "cache_control": {"type": "ephemeral"}}])).status_code == 200


@pytest.mark.parametrize(
    ("part", "param"),
    [
        (image(detail="medium"), "image_url.detail"),
        (image(detail=3), "image_url.detail"),
        (image(None), "image_url.url"),
        ({"type": "image_url", "image_url": {}}, "image_url.url"),
        ({"type": "image_url", "image_url": None}, "image_url"),
        ({"type": "image_url"}, "image_url"),
        ({"type": "image_url", "image_url": {"uri": URL}}, "image_url.url"),
        (image(""), "image_url.url"),
        (image("data:text/html;base64,AAAA"), "image_url.url"),
        (image("data:image/png;base64,A"), "image_url.url"),
        (image("https://images.example/a.png"), "image_url.url"),
        (image("http://127.0.0.1/a.png"), "image_url.url"),
        (image("http://169.254.169.254/latest/meta-data/"), "image_url.url"),
        (image("file:///etc/hostname"), "image_url.url"),
        ({"type": "image_url", "image_url": "file:///etc/hostname"}, "image_url"),
        ({"type": "input_image", "image_url": URL}, "type"),
    ],
)
async def test_refusals_name_the_field(it: ScriptedApp, part: dict[str, Any], param: str) -> None:
    answered = await it.chat([TEXT, part])
    error = answered.json()["error"]
    assert (answered.status_code, error["param"]) == (400, f"messages[0].content[1].{param}")
    assert error["param"] in error["message"]
    assert it.backend.calls == []


async def test_legal_details_are_listed(it: ScriptedApp) -> None:
    message = (await it.chat([image(detail="x")])).json()["error"]["message"]
    assert message.endswith("; legal: auto, low, high.")


async def test_nothing_is_fetched_unless_a_host_is_allowed(it: ScriptedApp, web: Site) -> None:
    error = (await it.chat([image(f"http://{SITE}:{web.port}/a.png")])).json()["error"]
    assert error["code"] == "invalid_image_url"
    assert "server.image_hosts is empty" in error["message"]
    assert "data: URI" in error["message"]
    assert web.asked == []


async def test_more_images_than_the_model_takes(server: AppHost) -> None:
    it = seeing(server, options=TextOptions(max_images=2))
    assert (await it.chat([image(), TEXT, image()])).status_code == 200
    turns = [{"role": "user", "content": [image(), image()]}, {"role": "user", "content": [TEXT, image()]}]
    refused = await it.client.post(CHAT, json={"model": "scripted", "messages": turns})
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, "messages[1].content[1].image_url.url")
    assert "takes 2 of a request" in error["message"]


# --- models -----------------------------------------------------------------------------------------------------------


async def test_a_model_that_can_t_see_names_those_that_can(server: AppHost) -> None:
    it = server.app(ScriptedBackend(answer=hello))
    error = (await it.chat([TEXT, image()])).json()["error"]
    assert (error["param"], error["code"]) == ("messages[0].content[1]", "unsupported_content")
    assert "no model here does" in error["message"]
    fleet = cast(ScriptedFleet, it.gateway.fleet)
    for name, sees, kind in (("sighted", True, "text"), ("blind", False, "text"), ("vectors", True, "embedding")):
        settings = msgspec.structs.replace(SETTINGS, name=name, kind=kind)
        backend = ScriptedBackend(images=sees)
        fleet.routes.append(Route(name, kind, [], settings, [backend], it.registry))
    error = (await it.chat([TEXT, image()])).json()["error"]
    assert error["message"].endswith("takes none; those here that do: 'sighted'.")
    assert it.backend.calls == []
    assert (await it.chat([TEXT])).status_code == 200


async def test_what_a_model_can_that_is_not_loaded_yet_its_worker_says(server: AppHost) -> None:
    backend = ScriptedBackend(images=False, answer=lambda call: call.fail("invalid_request", "it can't see", "a.b"))
    it = server.app(backend)
    backend.become(State.LOADING)
    asking = asyncio.create_task(it.chat([TEXT, image()]))
    await until(lambda: it.admission.waiting == 1)
    backend.become(State.READY)
    answered = await asking
    assert (answered.status_code, answered.json()["error"]["param"]) == (400, "a.b")


# --- bytes ------------------------------------------------------------------------------------------------------------


def of(size: int) -> dict[str, Any]:
    return image("data:image/png;base64," + base64.b64encode(bytes(size)).decode())


async def test_bytes_of_one_image_and_of_all(limited: AppHost) -> None:
    it = seeing(limited)
    assert (await it.chat([of(1000), of(500)])).status_code == 200
    refused = await it.chat([of(5), of(1001)])
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (413, "messages[0].content[1].image_url.url")
    assert "1000 bytes" in error["message"]
    refused = await it.chat([of(800), of(800)])
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (413, "payload_too_large")
    assert error["param"].startswith("messages[0].content[")
    assert "1500 bytes" in error["message"]


async def test_twenty_megabytes_are_taken_by_default(it: ScriptedApp) -> None:
    answered = await it.chat([of(20_000_000)])
    assert answered.status_code == 200
    (part,) = messages(it)[0].content
    assert isinstance(part, ImagePart)
    assert len(part.data) == 20_000_000


async def test_from_a_host_that_is_allowed(limited: AppHost, web: Site) -> None:
    it = seeing(limited)
    web.asked.clear()
    at = f"http://{SITE}:{web.port}"
    assert (await it.chat([image(f"{at}/a.png"), TEXT, image()], headers={"cookie": "a=b"})).status_code == 200
    parts = messages(it)[0].content
    assert parts[0] == ImagePart(PICTURE, "auto", "messages[0].content[0].image_url.url")
    assert parts[2] == ImagePart(FILE, "auto", "messages[0].content[2].image_url.url")
    (head,) = web.asked
    assert "ookie" not in head
    assert "uthorization" not in head
    for path, status, says in (("none", 400, "status 404"), ("large", 413, "1000 bytes")):
        refused = await it.chat([TEXT, image(f"{at}/{path}")])
        error = refused.json()["error"]
        assert (refused.status_code, error["param"]) == (status, "messages[0].content[1].image_url.url")
        assert says in error["message"]
    refused = await it.chat([image(f"http://{PRIVATE}:{web.port}/a.png")])
    assert "not among the hosts" in refused.json()["error"]["message"]
    web.asked.clear()
    wrong = await it.chat([image(f"{at}/a.png")], temperature=0.5, min_tokens=5, max_tokens=4)
    assert wrong.json()["error"]["param"] == "min_tokens"
    assert web.asked == [], "it was fetched for a request that is refused"


@pytest.mark.parametrize(
    ("sizes", "large"),
    [
        ([], False),
        ([2 << 20], False),
        ([(2 << 20) + 1], True),
        ([1 << 20] * 2, False),
        ([9] * 4, False),
        ([9] * 5, True),
    ],
)
async def test_which_requests_are_large(it: ScriptedApp, sizes: list[int], large: bool) -> None:
    route = it.gateway.fleet.routes[0]
    assert (
        Job("x", route, TextRequest(prompts=[], sampling=Sampling()), 1, Terms(1.0), 100, images=sizes).large == large
    )


async def test_the_bytes_of_a_small_image_do_not_make_a_request_large(
    it: ScriptedApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[bool] = []
    acquire = Admission.acquire

    def acquired(admission: Admission, *arguments: Any, **named: Any) -> Any:
        found.append(named["large"])
        return acquire(admission, *arguments, **named)

    monkeypatch.setattr(Admission, "acquire", acquired)
    for content in ([of(20_000)], "word " * 4000, [{"type": "text", "text": "word " * 4000}, of(20)], [of(3_000_000)]):
        await it.chat(content)
    assert found == [False, True, True, True]
