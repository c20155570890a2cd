"""The official client, as its users call it: both endpoints, streamed and not, blocking and not."""

import asyncio
import base64
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from openai import APIStatusError, AsyncOpenAI, BadRequestError, NotFoundError, OpenAI

from tests.servers import Gateway

WORDS = "one two three four five"


@pytest.fixture(scope="module")
def client(fakes: Gateway) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{fakes.url}/v1", api_key="any", max_retries=0, timeout=30) as client:
        yield client


@pytest_asyncio.fixture
async def async_client(fakes: Gateway) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{fakes.url}/v1", api_key="any", max_retries=0, timeout=30) as client:
        yield client


def test_chat(client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(model="busy", messages=[{"role": "user", "content": WORDS}])
    answer = raw.parse()
    assert answer.choices[0].message.content == WORDS
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5
    assert answer.usage.prompt_tokens_details is not None
    assert raw.headers["x-request-id"] == answer._request_id


def test_chat_streamed(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model="busy",
        messages=[{"role": "user", "content": WORDS}],
        stream=True,
        stream_options={"include_usage": True},
        logprobs=True,
        top_logprobs=2,
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == WORDS
    entries = [e for c in chunks if c.choices and c.choices[0].logprobs for e in c.choices[0].logprobs.content or []]
    assert "".join(entry.token for entry in entries) == WORDS
    assert all(len(entry.top_logprobs) == 2 for entry in entries)
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 10
    finish = [chunk for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason]
    assert len(finish) == 1
    assert finish[0].model_extra is not None
    assert finish[0].model_extra["timing"]["total"] > 0


def test_the_client_s_stream_helper(client: OpenAI) -> None:
    with client.chat.completions.stream(model="busy", messages=[{"role": "user", "content": WORDS}], n=2) as stream:
        for _ in stream:
            pass
        answer = stream.get_final_completion()
    assert [choice.message.content for choice in answer.choices] == [WORDS, WORDS]
    assert [choice.finish_reason for choice in answer.choices] == ["stop", "stop"]


def test_completions(client: OpenAI) -> None:
    answer = client.completions.create(model="busy", prompt=["one two", "three"], n=2, logprobs=0)
    assert [choice.text for choice in answer.choices] == ["one two", "one two", "three", "three"]
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.tokens == ["one", " two"]
    assert answer.choices[0].logprobs.text_offset == [0, 3]


def test_completions_streamed(client: OpenAI) -> None:
    chunks = list(client.completions.create(model="busy", prompt=[11, 12, 13], stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "t11 t12 t13"
    assert chunks[-1].choices[0].finish_reason == "stop"


async def test_many_at_once(async_client: AsyncOpenAI) -> None:
    async def whole(number: int) -> str | None:
        content = f"whole {number} and some more"
        answer = await async_client.chat.completions.create(
            model="busy", messages=[{"role": "user", "content": content}]
        )
        return answer.choices[0].message.content

    async def streamed(number: int) -> str:
        stream = await async_client.chat.completions.create(
            model="busy", messages=[{"role": "user", "content": f"stream {number} of words"}], stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async with asyncio.TaskGroup() as group:
        wholes = [group.create_task(whole(number)) for number in range(20)]
        streams = [group.create_task(streamed(number)) for number in range(20)]
    assert [task.result() for task in wholes] == [f"whole {number} and some more" for number in range(20)]
    assert [task.result() for task in streams] == [f"stream {number} of words" for number in range(20)]


async def test_completions_without_blocking(async_client: AsyncOpenAI) -> None:
    answer = await async_client.completions.create(model="busy", prompt="a b")
    assert answer.choices[0].text == "a b"
    stream = await async_client.completions.create(model="busy", prompt="a b c", stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "a b c"


PICTURE = {"url": "data:image/jpeg;base64," + base64.b64encode(bytes(range(200))).decode()}
ASKED = {"type": "text", "text": "What is it?"}


def test_an_image_as_the_client_s_guide_sends_it(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="busy",
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is it?"},
                    {"type": "image_url", "image_url": {"url": PICTURE["url"], "detail": "high"}},
                    {"type": "image_url", "image_url": {"url": PICTURE["url"]}},
                ],
            }
        ],
    )
    assert answer.choices[0].message.content == "What is it? image:200:high image:200:auto"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": PICTURE},  # LangChain
        {"type": "image_url", "image_url": {**PICTURE, "format": "image/jpeg"}},  # LiteLLM
        {"type": "image_url", "image_url": PICTURE["url"]},
        {"type": "image_url", "image_url": {**PICTURE, "detail": None}},
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_an_image_as_other_libraries_send_it(fakes: Gateway, part: dict[str, Any], stream: bool) -> None:
    body = {"model": "busy", "messages": [{"role": "user", "content": [ASKED, part]}], "stream": stream}
    answer = httpx.post(f"{fakes.url}/v1/chat/completions", json=body, timeout=30)
    assert answer.status_code == 200, answer.text
    assert "image:200:auto" in answer.text


def test_an_image_for_a_model_that_can_t_see(client: OpenAI) -> None:
    content: Any = [ASKED, {"type": "image_url", "image_url": PICTURE}]
    with pytest.raises(BadRequestError) as refused:
        client.chat.completions.create(model="one", messages=[{"role": "user", "content": content}])
    assert refused.value.param == "messages[0].content[1]"
    assert "those here that do: 'busy'" in refused.value.message
    takes = {model.id: (model.model_extra or {})["input_modalities"] for model in client.models.list()}
    assert (takes["busy"], takes["one"]) == (["text", "image"], ["text"])


def test_errors_are_the_client_s_own(client: OpenAI) -> None:
    with pytest.raises(NotFoundError) as unknown:
        client.chat.completions.create(model="nope", messages=[{"role": "user", "content": "x"}])
    assert unknown.value.code == "model_not_found"
    with pytest.raises(BadRequestError) as invalid:
        client.chat.completions.create(model="busy", messages=[{"role": "user", "content": "x"}], temperature=9)
    assert invalid.value.param == "temperature"
    with pytest.raises(BadRequestError) as unknown_field:
        client.completions.create(model="busy", prompt="x", extra_body={"use_beam_search": True})
    assert unknown_field.value.param == "use_beam_search"
    with pytest.raises(BadRequestError) as long:
        client.chat.completions.create(model="busy", messages=[{"role": "user", "content": "!too-long x"}], stream=True)
    assert long.value.code == "context_length_exceeded"


def test_a_late_failure_is_raised_by_the_client(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model="busy", messages=[{"role": "user", "content": "!crash-step=3 !step-ms=50 a b c d"}], stream=True
    )
    with pytest.raises(Exception, match="error") as failure:
        list(stream)
    assert not isinstance(failure.value, APIStatusError)  # the status had been sent


def test_extensions(client: OpenAI) -> None:
    answer = client.completions.create(
        model="busy",
        prompt="a b",
        extra_body={
            "top_k": 5,
            "min_p": 0.1,
            "repetition_penalty": 1.1,
            "min_tokens": 1,
            "ignore_eos": True,
            "stop_token_ids": [1],
        },
        extra_headers={"x-gateway-priority": "batch"},
    )
    assert answer.choices[0].text == "a b"


def test_every_listed_model_can_be_fetched(client: OpenAI) -> None:
    listed = [model.id for model in client.models.list()]
    assert "one" in listed
    for name in [*listed, "org/one"]:
        assert client.models.retrieve(name).id == name
    with pytest.raises(NotFoundError):
        client.models.retrieve("org/none")
