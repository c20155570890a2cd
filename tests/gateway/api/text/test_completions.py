"""`/v1/completions`: the four forms of a prompt, the legacy log-probabilities, chunks."""

from typing import Any

import pytest

from gateway.api.text.completion_request import CompletionRequest
from pipelines.messages.text import Delta, StringPrompt, TextRequest, TokenLogprob, TokenPrompt, TopLogprob
from tests.gateway.scripted import ScriptedCall
from tests.gateway.scripted_app import COMPLETIONS, AppHost, ScriptedApp, events

pytestmark = pytest.mark.asyncio(loop_scope="module")


def hello(call: ScriptedCall) -> None:
    request = call.call.request
    assert isinstance(request, TextRequest)
    choices = len(request.prompts) * request.n
    for text in ("Hel", "lo"):
        for index in range(choices):
            call.text(text, index)
    call.end(choices=choices)


@pytest.fixture
def it(server: AppHost) -> ScriptedApp:
    app = server.app()
    app.backend.answer = hello
    return app


async def test_an_answer(it: ScriptedApp) -> None:
    answer = await it.complete()
    body = answer.json()
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    assert body["choices"] == [{"index": 0, "text": "Hello", "logprobs": None, "finish_reason": "stop"}]
    assert body["usage"]["total_tokens"] == 5
    assert "x-gateway-timing" in answer.headers


async def test_a_stream(it: ScriptedApp) -> None:
    chunks = events((await it.complete(stream=True, n=2, stream_options={"include_usage": True})).text)
    assert len({(c["id"], c["created"], c["model"], c["object"]) for c in chunks}) == 1
    choices = [chunk["choices"][0] for chunk in chunks[:-1]]
    for index in range(2):
        own = [choice for choice in choices if choice["index"] == index]
        assert "".join(choice["text"] for choice in own) == "Hello"
        assert [choice["finish_reason"] for choice in own] == [None] * (len(own) - 1) + ["stop"]
    assert "timing" in chunks[-2]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["prompt_tokens"] == 3


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a", [StringPrompt("a")]),
        ("", [StringPrompt("")]),
        (["a", "b"], [StringPrompt("a"), StringPrompt("b")]),
        ([1, 2], [TokenPrompt([1, 2])]),
        ([[1], [2, 3]], [TokenPrompt([1]), TokenPrompt([2, 3])]),
    ],
)
async def test_the_forms_of_a_prompt(it: ScriptedApp, prompt: Any, expected: Any) -> None:
    answer = await it.complete(prompt)
    assert answer.status_code == 200, answer.text
    assert it.backend.calls[0].call.request.prompts == expected
    assert len(answer.json()["choices"]) == len(expected)


async def test_choices_follow_their_prompts(it: ScriptedApp) -> None:
    answer = await it.complete(["a", "b"], n=2)
    assert [choice["index"] for choice in answer.json()["choices"]] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "fields",
    [
        {"echo": True, "max_tokens": 0},
        {"best_of": 2, "n": 2},
        {"suffix": None},
        {"stop": ["a"]},
        {"stop": "a"},
        {"logprobs": 0},
        dict.fromkeys(field for field in CompletionRequest.__struct_fields__ if field not in ("model", "prompt")),
    ],
)
async def test_legal_requests(it: ScriptedApp, fields: dict[str, Any]) -> None:
    answer = await it.complete(**fields)
    assert answer.status_code == 200, answer.text
    request = it.backend.calls[0].call.request
    assert request.echo is bool(fields.get("echo"))
    assert request.sampling.logprobs == fields.get("logprobs")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [1, [2]]}, "prompt"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": [True]}, "prompt[0]"),
        ({"prompt": ["a"] * 2049}, "prompt"),
        ({"prompt": ["a"] * 1025, "n": 2}, "n"),
        ({"best_of": 3, "n": 2}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"n": 0, "stream": True}, "n"),
        ({"messages": []}, "messages"),
        ({"tools": []}, "tools"),
    ],
)
async def test_refusals_name_the_field(it: ScriptedApp, fields: dict[str, Any], param: str) -> None:
    answer = await it.client.post(COMPLETIONS, json={"model": "scripted", "prompt": "x", **fields})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert not it.backend.calls


def entry(text: str, data: bytes, logprob: float | None, *others: str) -> TokenLogprob:
    top = [TopLogprob(i, other, -0.1 - i, other.encode()) for i, other in enumerate(others)]
    return TokenLogprob(0, text, logprob, data, top)


FOX = "🦊".encode()
ENTRIES = [
    entry("é", "é".encode(), None),
    entry("�", FOX[:1], -1.0, "a"),
    entry("�", FOX[1:], -2.0),
    entry(" b", b" b", -3.0, "c", " b"),
]


@pytest.mark.parametrize("stream", [False, True])
async def test_legacy_log_probabilities(it: ScriptedApp, stream: bool) -> None:
    """Offsets are characters of the text; a token inside a character has that character's."""

    def answer(call: ScriptedCall) -> None:
        for text, entries in (("é", ENTRIES[:1]), ("🦊", ENTRIES[1:3]), (" b", ENTRIES[3:])):
            call.say(Delta(call.call.id, 0, text, len(entries), 0.0, entries))
        call.end()

    it.backend.answer = answer
    response = await it.complete(stream=stream, logprobs=1)
    found: dict[str, list[Any]] = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
    for chunk in events(response.text) if stream else [response.json()]:
        for key, values in (chunk["choices"][0]["logprobs"] or {}).items():
            found[key] += values
    assert found["text_offset"] == [0, 1, 1, 2]
    assert found["token_logprobs"] == [None, -1.0, -2.0, -3.0]
    assert found["tokens"] == ["é", "�", "�", " b"]
    assert found["top_logprobs"][0] is None
    assert found["top_logprobs"][1] == {"a": -0.1, "�": -1.0}
    assert found["top_logprobs"][2] == {"�": -2.0}  # none asked for beside it: the chosen one alone
    assert found["top_logprobs"][3] == {"c": -0.1, " b": -3.0}
