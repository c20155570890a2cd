"""`/v1/chat/completions`: what is refused, and in which words."""

from typing import Any

import pytest

from tests.gateway.scripted_app import CHAT, AppHost, ScriptedApp, chat

CALLS = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def it(server: AppHost) -> ScriptedApp:
    return server.app()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": True}, "n"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": -2.5}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"seed": 2**63}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": 4, "max_completion_tokens": 5}, "max_tokens"),
        ({"max_tokens": 4, "min_tokens": 5}, "min_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": [1]}, "stop[0]"),
        ({"stop": ["x"] * 65}, "stop"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"ignore_eos": "yes"}, "ignore_eos"),
        ({"speculation": True}, "speculation"),
        ({"speculation": {"kind": "magic"}}, "speculation.kind"),
        ({"speculation": {"max_draft": 0}}, "speculation.max_draft"),
        ({"speculation": {"depth": 3}}, "speculation.depth"),
        ({"logit_bias": {"abc": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 1e9}}, "logit_bias"),
        ({"logprobs": 1}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 100000}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": True}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 1.5}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"functions": []}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"audio": {}}, "audio"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"temprature": 1}, "temprature"),
        ({"logprob": None}, "logprob"),
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"model": None}, "model"),
        ({"messages": [{"content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "bot", "content": "b"}]}, "messages[1].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "user", "content": [{"type": "txt", "text": "x"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": CALLS}]}, "messages[0].tool_calls"),
    ],
)  # fmt: skip
async def test_refusals_name_the_field(it: ScriptedApp, fields: dict[str, Any], param: str) -> None:
    answer = await it.client.post(CHAT, json={**chat("x"), **fields})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"].removesuffix("[...]") == param
    assert param in error["message"]
    assert error["type"] == "invalid_request_error"
    assert not it.backend.calls


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file"])
async def test_media_on_a_text_model_is_refused_by_its_place(it: ScriptedApp, kind: str) -> None:
    answer = await it.chat([{"type": "text", "text": "What is it?"}, {"type": kind, kind: {"url": "data:…"}}])
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages[0].content[1]"


async def test_a_bad_stream_request_is_a_plain_error(it: ScriptedApp) -> None:
    answer = await it.chat(stream=True, n=0)
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["error"]["param"] == "n"


async def test_unknown_models_list_the_known(it: ScriptedApp) -> None:
    answer = await it.chat(model="nope")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"
    assert "scripted" in answer.json()["error"]["message"]


async def test_a_model_of_another_kind_is_refused(server: AppHost) -> None:
    it = server.app(kind="embedding")
    answer = await it.chat()
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "model"


@pytest.mark.parametrize(
    "header", [{"x-gateway-priority": "urgent"}, {"x-gateway-timeout-ms": "-1"}, {"x-gateway-timeout-ms": "1.5"}]
)
async def test_bad_terms(it: ScriptedApp, header: dict[str, str]) -> None:
    answer = await it.chat(headers=header)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] in header


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'{"model":"\xff"}',
        b'{"model":"\\ud800"}',
        b"[" * 100_000,
        b'{"metadata":' + b"[" * 100_000,
    ],
)
async def test_what_is_no_json(it: ScriptedApp, body: bytes) -> None:
    answer = await it.client.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_half_of_a_surrogate_pair_is_named(it: ScriptedApp) -> None:
    body = b'{"model":"scripted","messages":[{"role":"user","content":"a\\ud800"}]}'
    answer = await it.client.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages[0].content")


async def test_only_json_is_taken(it: ScriptedApp) -> None:
    answer = await it.client.post(CHAT, data={"model": "scripted"})
    assert answer.status_code == 415
