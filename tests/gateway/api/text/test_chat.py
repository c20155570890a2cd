"""`/v1/chat/completions`: what is taken, what comes out."""

from typing import Any

import pytest

from gateway.api.text.chat_request import ChatRequest
from pipelines.messages.text import ChatPrompt, ChoiceDone, Message, TextPart, TextRequest, TokenLogprob, TopLogprob
from tests.gateway.scripted import ScriptedCall
from tests.gateway.scripted_app import CHAT, AppHost, ScriptedApp, events

pytestmark = pytest.mark.asyncio(loop_scope="module")


def hello(call: ScriptedCall) -> None:
    """Every choice says "Hello" in two deltas."""
    request = call.call.request
    assert isinstance(request, TextRequest)
    choices = request.n
    for index in range(choices):
        call.text("Hel", index)
    for index in range(choices):
        call.text("lo", index)
    call.end(choices=choices)


@pytest.fixture
def it(server: AppHost) -> ScriptedApp:
    app = server.app(aliases=["gpt-4o-mini"])
    app.backend.answer = hello
    return app


async def test_an_answer(it: ScriptedApp) -> None:
    answer = await it.chat("Hi")
    body = answer.json()
    assert body["object"] == "chat.completion"
    assert body["model"] == "scripted"
    assert body["id"].startswith("chatcmpl-")
    assert body["system_fingerprint"].startswith("fp_")
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"content": "Hello", "role": "assistant", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert body["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    names = [part.split("=")[0] for part in answer.headers["x-gateway-timing"].split(", ")]
    assert names == ["queue", "prepare", "compute", "total"]
    assert answer.headers["x-request-id"]


async def test_a_stream(it: ScriptedApp) -> None:
    answer = await it.chat("Hi", stream=True)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    chunks = events(answer.text)
    assert len({(c["id"], c["created"], c["model"], c["object"], c["system_fingerprint"]) for c in chunks}) == 1
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert [delta.get("role") for delta in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    assert "".join(delta.get("content", "") for delta in deltas) == "Hello"
    assert deltas[-1] == {}
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert all("finish_reason" in chunk["choices"][0] for chunk in chunks)
    assert not any("usage" in chunk for chunk in chunks)
    assert [set(chunk["timing"]) for chunk in chunks if "timing" in chunk] == [{"queue", "prepare", "compute", "total"}]
    assert "timing" in chunks[-1]


async def test_streams_have_ids_of_their_own(it: ScriptedApp) -> None:
    first, second = events((await it.chat(stream=True)).text), events((await it.chat(stream=True)).text)
    assert first[0]["id"] != second[0]["id"]


async def test_several_choices_each_have_one_role_and_one_finish(it: ScriptedApp) -> None:
    chunks = events((await it.chat(stream=True, n=3)).text)
    choices = [chunk["choices"][0] for chunk in chunks]
    for index in range(3):
        own = [choice for choice in choices if choice["index"] == index]
        assert "".join(choice["delta"].get("content", "") for choice in own) == "Hello"
        assert sum("role" in choice["delta"] for choice in own) == 1
        assert [choice["finish_reason"] for choice in own if choice["finish_reason"]] == ["stop"]
        assert "role" in own[0]["delta"]
        assert own[-1]["finish_reason"] == "stop"
    assert sum("timing" in chunk for chunk in chunks) == 1
    assert "timing" in chunks[-1]
    assert (await it.chat(n=3)).json()["choices"][2]["message"]["content"] == "Hello"


async def test_a_choice_without_text_still_has_its_role(it: ScriptedApp) -> None:
    it.backend.answer = lambda call: call.end("length")
    chunks = events((await it.chat(stream=True)).text)
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [{"role": "assistant", "content": ""}, {}]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert (await it.chat()).json()["choices"][0]["message"]["content"] == ""


async def test_a_finish_is_not_held_back_by_other_choices(it: ScriptedApp) -> None:
    """Only until the next event: choice 0 has ended for its reader while choice 1 still runs."""

    def answer(call: ScriptedCall) -> None:
        call.say(call.delta("a", 0), call.delta("b", 1), ChoiceDone(call.call.id, 0, "stop"), call.delta("c", 1))
        call.say(ChoiceDone(call.call.id, 1, "length"), call.done())

    it.backend.answer = answer
    chunks = events((await it.chat(stream=True, n=2)).text)
    shown = [(c["choices"][0]["index"], c["choices"][0]["finish_reason"]) for c in chunks]
    assert shown.index((0, "stop")) < len(shown) - 1
    assert shown[-1] == (1, "length")


async def test_a_part_of_the_model_that_can_not_be_loaded_is_told(it: ScriptedApp) -> None:
    it.backend.answer = lambda call: call.fail("model_unavailable", "The part that looks at images can't be loaded.")
    answer = await it.chat()
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_unavailable")
    assert "images" in answer.json()["error"]["message"]
    assert answer.headers["x-should-retry"] == "false"


async def test_numbers_that_are_none_are_told_as_such(it: ScriptedApp) -> None:
    it.backend.answer = lambda call: call.fail("invalid_output", "the result is no number")
    answer = await it.chat()
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "invalid_output")
    assert answer.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("options", [{}, None, {"include_usage": False}, {"include_usage": None}])
async def test_no_usage_unless_asked_for(it: ScriptedApp, options: Any) -> None:
    chunks = events((await it.chat(stream=True, stream_options=options)).text)
    assert all(chunk["choices"] for chunk in chunks)
    assert not any(chunk.get("usage") for chunk in chunks)


async def test_usage_comes_once_at_the_end(it: ScriptedApp) -> None:
    chunks = events((await it.chat(stream=True, stream_options={"include_usage": True})).text)
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] == 5


@pytest.mark.parametrize("stream", [False, True])
async def test_log_probabilities(it: ScriptedApp, stream: bool) -> None:
    fox = "🦊".encode()
    entries = [
        TokenLogprob(
            7,
            "\ufffd",
            -0.5,
            fox[:2],
            [TopLogprob(7, "\ufffd", -0.5, fox[:2]), TopLogprob(9, "x", float("-inf"), b"x")],
        ),
        TokenLogprob(
            8, "\ufffd", -0.25, fox[2:], [TopLogprob(8, "\ufffd", -0.25, fox[2:]), TopLogprob(9, "x", -3.0, b"x")]
        ),
    ]

    def answer(call: ScriptedCall) -> None:
        delta = call.delta("🦊", tokens=2)
        call.say(type(delta)(delta.id, 0, delta.text, 2, 0.0, entries))
        call.end()

    it.backend.answer = answer
    response = await it.chat(stream=stream, logprobs=True, top_logprobs=2)
    assert it.backend.calls[0].call.request.sampling.logprobs == 2
    choice = events(response.text)[0]["choices"][0] if stream else response.json()["choices"][0]
    content = choice["logprobs"]["content"]
    assert bytes(byte for entry in content for byte in entry["bytes"]).decode() == "🦊"
    assert content[0]["top_logprobs"][1] == {"token": "x", "logprob": -9999.0, "bytes": [120]}
    assert [entry["logprob"] for entry in content] == [-0.5, -0.25]


async def test_log_probabilities_without_alternatives(it: ScriptedApp) -> None:
    await it.chat(logprobs=True)
    await it.chat(logprobs=True, top_logprobs=0)
    await it.chat(logprobs=False)
    assert [call.call.request.sampling.logprobs for call in it.backend.calls] == [0, 0, None]


# --- what is taken ----------------------------------------------------------------------------------------------------


async def test_every_parameter_reaches_the_pipeline(it: ScriptedApp) -> None:
    fields = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "presence_penalty": -1,
        "frequency_penalty": 1.5,
        "repetition_penalty": 1.1,
        "logit_bias": {"50": -100, "7": 3.5},
        "seed": -5,
        "max_completion_tokens": 9,
        "min_tokens": 2,
        "stop": ["a", "b"],
        "stop_token_ids": [3],
        "ignore_eos": True,
    }
    assert (await it.chat(n=2, **fields)).status_code == 200
    request = it.backend.calls[0].call.request
    sampling = request.sampling
    assert request.n == 2
    assert sampling.max_tokens == fields.pop("max_completion_tokens")
    assert sampling.logit_bias == {50: -100.0, 7: 3.5}
    del fields["logit_bias"]
    for name, value in fields.items():
        assert getattr(sampling, name) == value


async def test_null_is_absence(it: ScriptedApp) -> None:
    optional = [field for field in ChatRequest.__struct_fields__ if field not in ("model", "messages")]
    assert (await it.chat(**dict.fromkeys(optional))).status_code == 200
    assert (await it.chat()).status_code == 200
    first, second = it.backend.calls
    assert first.call.request == second.call.request


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": []},
        {"tool_choice": "none"},
        {"tool_choice": "auto"},
        {"parallel_tool_calls": False},
        {"response_format": {"type": "text"}},
        {"modalities": ["text"]},
        {"stop": []},
        {"stop": "STOP"},
        {"top_p": 1.0},
        {"top_p": 1},
        {"max_tokens": 5, "max_completion_tokens": 5},
        {"user": "u", "store": True, "metadata": {"a": "b"}, "service_tier": "auto"},
        {"prompt_cache_key": "k", "prompt_cache_retention": "24h", "safety_identifier": "s"},
        {"model": "gpt-4o-mini"},
        {"stream": True, "stream_options": {"include_obfuscation": False}},
    ],
)
async def test_legal_requests(it: ScriptedApp, fields: dict[str, Any]) -> None:
    answer = await it.chat(**fields)
    assert answer.status_code == 200, answer.text


async def test_messages_of_every_kind(it: ScriptedApp) -> None:
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "system", "content": [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}]},
        {"role": "user", "content": "Hi", "name": "ann", "id": 19, "opts": {"visible": False}},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "content": "42", "tool_call_id": "c1"},
    ]
    answer = await it.client.post(CHAT, json={"model": "scripted", "messages": messages})
    assert answer.status_code == 200, answer.text
    (prompt,) = it.backend.calls[0].call.request.prompts
    assert isinstance(prompt, ChatPrompt)
    assert [message.role for message in prompt.messages] == [message["role"] for message in messages]
    assert prompt.messages[2] == Message("user", [TextPart("Hi")], name="ann")
    assert prompt.messages[3].content == []
    assert prompt.messages[4].content == [TextPart("a"), TextPart("b")]
    assert prompt.messages[5].tool_calls[0].function.name == "f"
    assert prompt.messages[6].tool_call_id == "c1"


async def test_terms_come_from_headers_and_are_capped(it: ScriptedApp) -> None:
    await it.chat(headers={"x-gateway-priority": "batch", "x-gateway-timeout-ms": "5000"})
    await it.chat(headers={"x-gateway-timeout-ms": "999999999"})
    first, second = (call.call for call in it.backend.calls)
    assert (first.priority, second.priority) == ("batch", "interactive")
    assert first.deadline is not None
    assert second.deadline is not None
    assert 4 < first.deadline <= 5
    assert 500 < second.deadline <= 600
