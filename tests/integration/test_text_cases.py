"""The embedded model through the whole system: what servers of this kind got wrong, and what callers expect."""

import base64
from typing import Any

import httpx
import pytest
from openai import BadRequestError, OpenAI

from models.files.source import resolve
from models.tokenizer.tokenizer import load_tokenizer
from tests.gateway.scripted_app import events
from tests.integration.conftest import sample, wait_until
from tests.servers import Gateway

pytestmark = pytest.mark.requires_weights

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
COUNTING = "one two three four five six"


class Asked:
    """Short ways to ask the embedded model."""

    def __init__(self, client: httpx.Client, model: str) -> None:
        self.client = client
        self.model = model

    def chat(self, content: Any, **fields: Any) -> httpx.Response:
        messages = (
            content if isinstance(content, list) and "role" in content[0] else [{"role": "user", "content": content}]
        )
        return self.client.post(CHAT, json={"model": self.model, "messages": messages, **fields})

    def complete(self, prompt: Any, **fields: Any) -> httpx.Response:
        return self.client.post(COMPLETIONS, json={"model": self.model, "prompt": prompt, **fields})

    def said(self, content: Any, **fields: Any) -> str:
        answer = self.chat(content, **fields)
        assert answer.status_code == 200, answer.text
        text: str = answer.json()["choices"][0]["message"]["content"]
        return text

    def completed(self, prompt: Any, **fields: Any) -> dict[str, Any]:
        answer = self.complete(prompt, **fields)
        assert answer.status_code == 200, answer.text
        choice: dict[str, Any] = answer.json()["choices"][0]
        return choice

    def is_alive(self) -> bool:
        return self.chat("Hi", max_tokens=1).status_code == 200


@pytest.fixture(scope="module")
def ask(http_real: httpx.Client, model: str) -> Asked:
    return Asked(http_real, model)


def test_control_tokens_are_text_in_chats_and_tokens_in_prompts(ask: Asked) -> None:
    def prompt_tokens(answer: httpx.Response) -> int:
        count: int = answer.json()["usage"]["prompt_tokens"]
        return count

    typed = "<|im_end|>" * 20
    plain = prompt_tokens(ask.chat("Hi", max_tokens=1))
    assert prompt_tokens(ask.chat(f"Hi{typed}", max_tokens=1)) >= plain + 3 * 20
    parts = [{"type": "text", "text": "Hi"}, {"type": "text", "text": typed}]
    assert prompt_tokens(ask.chat(parts, max_tokens=1)) >= plain + 3 * 20
    assert prompt_tokens(ask.complete(f"Hi{typed}", max_tokens=1)) == 21


def test_what_a_request_does_not_say_is_as_the_model_is_listed(ask: Asked) -> None:
    (listed,) = ask.client.get("/v1/models").json()["data"]
    defaults = listed["default_sampling"]
    assert (defaults["temperature"], defaults["top_p"], defaults["top_k"]) == (0.2, 0.9, 0)
    assert listed["details"]["device"] == "cpu"
    wanted = {"max_tokens": 24, "seed": 5}
    assert ask.said("Tell me a story.", **wanted) == ask.said("Tell me a story.", **wanted, **defaults)
    assert ask.said("Tell me a story.", **wanted) != ask.said("Tell me a story.", **wanted, temperature=1, top_p=1)


# --- streams ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_stream_has_one_identity_and_its_parts_once(ask: Asked, path: str) -> None:
    fields: dict[str, Any] = {"stream": True, "max_tokens": 6, "temperature": 0}
    first = ask.chat("Say hello.", **fields) if path == CHAT else ask.complete(COUNTING, **fields)
    second = ask.chat("Say hello.", **fields) if path == CHAT else ask.complete(COUNTING, **fields)
    chunks = events(first.text)
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert events(second.text)[0]["id"] != chunks[0]["id"]
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["length"]
    if path == CHAT:
        assert ["role" in chunk["choices"][0]["delta"] for chunk in chunks] == [True] + [False] * (len(chunks) - 1)


def test_streamed_and_not_are_the_same_text(ask: Asked) -> None:
    fields: dict[str, Any] = {"max_tokens": 24, "temperature": 0.8, "seed": 7}
    whole = ask.said("Tell me about Naïve cafés, 你好 and 🦊.", **fields)
    chunks = events(ask.chat("Tell me about Naïve cafés, 你好 and 🦊.", stream=True, **fields).text)
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == whole
    assert whole


@pytest.mark.parametrize(
    ("options", "expected"), [({}, 0), (None, 0), ({"include_usage": False}, 0), ({"include_usage": True}, 1)]
)
def test_usage_comes_only_when_asked_for(ask: Asked, options: Any, expected: int) -> None:
    chunks = events(ask.chat("Hi", stream=True, max_tokens=3, stream_options=options).text)
    with_usage = [chunk for chunk in chunks if chunk.get("usage")]
    assert len(with_usage) == expected
    if expected:
        assert with_usage[0] is chunks[-1]
        assert with_usage[0]["choices"] == []
        assert with_usage[0]["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_no_choices_in_a_stream_are_a_plain_refusal(ask: Asked, path: str) -> None:
    answer = ask.chat("Hi", n=0, stream=True) if path == CHAT else ask.complete("Hi", n=0, stream=True)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "n"


# --- nothing is taken and then ignored --------------------------------------------------------------------------------


def test_a_bias_removes_and_forces_a_token(ask: Asked, real: Gateway) -> None:
    tokenizer = load_tokenizer(resolve(real.settings.models[0].source))
    first = ask.completed(COUNTING, max_tokens=1, temperature=0)
    (chosen,) = tokenizer.encode(first["text"], add_special=False)
    (apple,) = tokenizer.encode(" apple", add_special=False)
    without = ask.completed(COUNTING, max_tokens=1, temperature=0, logit_bias={str(chosen): -100})
    assert without["text"] != first["text"]
    forced = ask.completed(COUNTING, max_tokens=1, temperature=0, logit_bias={str(apple): 100})
    assert forced["text"] == " apple"


def test_a_seed_fixes_the_text_and_only_its_own(ask: Asked) -> None:
    texts = [ask.said("Write a line of a poem.", temperature=1.3, max_tokens=20, seed=seed) for seed in (1, 1, 2, 3)]
    assert texts[0] == texts[1]
    assert len(set(texts)) >= 2


def test_a_stop_string_of_several_tokens(ask: Asked) -> None:
    text: str = ask.completed(COUNTING, max_tokens=24, temperature=0)["text"]
    words = text.split(" ")
    middle = len(words) // 2
    stop = " ".join(words[middle : middle + 3])
    before = text[: text.index(stop)]
    for stream in (False, True):
        answer = ask.complete(COUNTING, max_tokens=24, temperature=0, stop=[stop], stream=stream)
        choices = [c["choices"][0] for c in (events(answer.text) if stream else [answer.json()])]
        assert "".join(choice["text"] for choice in choices) == before
        assert choices[-1]["finish_reason"] == "stop"


def test_no_stop_strings_are_no_change(ask: Asked) -> None:
    texts = {ask.said("Say OK.", temperature=0, max_tokens=60, **stop) for stop in ({}, {"stop": []}, {"stop": None})}
    assert len(texts) == 1
    assert "<|im_end|>" not in texts.pop()


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("stop", ["e", ["e", "zzz"]])
def test_one_stop_string_or_a_list(ask: Asked, path: str, stop: Any) -> None:
    fields: dict[str, Any] = {"stop": stop, "temperature": 0, "max_tokens": 30}
    text = ask.said("Name three trees.", **fields) if path == CHAT else ask.completed(COUNTING, **fields)["text"]
    assert "e" not in text


# --- legal requests are served ----------------------------------------------------------------------------------------


def test_an_empty_turn_of_the_assistant(ask: Asked) -> None:
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "Are you there?"},
    ]
    assert ask.said(turns, max_tokens=4)
    turns[1] = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    }
    assert ask.said(turns, max_tokens=4)


def test_the_developer_and_parts(ask: Asked) -> None:
    parts = [{"type": "text", "text": "Say hello."}, {"type": "text", "text": "Twice."}]
    turns = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}]
    joined = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say hello.\nTwice."}]
    assert ask.said(turns, max_tokens=8, temperature=0) == ask.said(joined, max_tokens=8, temperature=0)


@pytest.mark.parametrize(
    "fields",
    [
        {"top_p": 1.0},
        {"top_p": 0},
        {"tools": []},
        {"tools": [], "tool_choice": "none", "parallel_tool_calls": False},
        {"messages": [{"role": "user", "content": "Hi", "id": 19, "opts": {"visible": False}}]},
        {"response_format": {"type": "text"}, "user": "u", "metadata": {"a": "b"}, "store": False},
    ],
)
def test_what_editors_and_frameworks_send(ask: Asked, fields: dict[str, Any]) -> None:
    assert ask.chat("Hi", max_tokens=2, **fields).status_code == 200


@pytest.mark.parametrize("top_p", [-0.1, 1.1])
def test_a_nucleus_beyond_its_range(ask: Asked, top_p: float) -> None:
    assert ask.chat("Hi", top_p=top_p).json()["error"]["param"] == "top_p"


def test_a_nucleus_of_nothing_is_greedy(ask: Asked) -> None:
    greedy = ask.said("Name a colour.", temperature=0, max_tokens=12)
    assert ask.said("Name a colour.", top_p=0, temperature=1.5, max_tokens=12) == greedy


def test_log_probabilities_of_the_chosen_tokens_alone(ask: Asked) -> None:
    content = ask.chat("Hi", logprobs=True, max_tokens=3).json()["choices"][0]["logprobs"]["content"]
    assert [entry["top_logprobs"] for entry in content] == [[], [], []]
    legacy = ask.completed(COUNTING, logprobs=0, max_tokens=3)["logprobs"]
    assert len(legacy["token_logprobs"]) == len(legacy["tokens"]) == 3
    assert [len(top) for top in legacy["top_logprobs"]] == [1, 1, 1]


def test_log_probabilities_of_tokens_that_are_no_characters(ask: Asked) -> None:
    answer = ask.chat("Say 🦊 and 你", logprobs=True, top_logprobs=20, max_tokens=16, temperature=0)
    assert answer.status_code == 200
    choice = answer.json()["choices"][0]
    content = choice["logprobs"]["content"]
    assert all(len(entry["top_logprobs"]) == 20 for entry in content)
    assert all(0 <= byte <= 255 for entry in content for byte in entry["bytes"] or [])
    joined = bytes(byte for entry in content for byte in entry["bytes"] or [])
    assert joined.decode("utf-8", errors="replace").startswith(choice["message"]["content"])


def test_a_prompt_comes_back_with_its_log_probabilities(ask: Asked) -> None:
    choice = ask.completed(COUNTING, echo=True, max_tokens=2, temperature=0, logprobs=1)
    assert choice["text"].startswith(COUNTING)
    logprobs = choice["logprobs"]
    assert logprobs["token_logprobs"][0] is None
    assert "".join(logprobs["tokens"]) == choice["text"]
    assert all(
        choice["text"][o:].startswith(t) for o, t in zip(logprobs["text_offset"], logprobs["tokens"], strict=True)
    )


# --- bad input is a 400, and the server lives -------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [{"999999": 5}, {"-1": 5}, {"abc": 5}, {"5": 1e9}])
def test_a_bias_on_no_token(ask: Asked, bias: dict[str, float]) -> None:
    answer = ask.chat("Hi", logit_bias=bias)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("logit_bias")
    assert ask.is_alive()


@pytest.mark.parametrize("top", [100_000, 16_384, 21, True, 2.5])
def test_too_many_alternatives(ask: Asked, top: Any) -> None:
    answer = ask.chat("Hi", logprobs=True, top_logprobs=top)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "top_logprobs"
    assert ask.is_alive()


def test_an_image_on_a_text_model(ask: Asked) -> None:
    url = "data:image/png;base64," + base64.b64encode(b"no image").decode()
    parts = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": url}}]
    answer = ask.chat(parts)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages[0].content[1]"
    assert ask.is_alive()


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_can_never_fit(ask: Asked, stream: bool) -> None:
    answer = ask.chat("word " * 20_000, stream=stream)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


# --- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 5, 20])
@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_the_token_limit_is_exact(ask: Asked, limit: int, field: str) -> None:
    answer = ask.chat("Tell me a long story about a fox.", **{field: limit}).json()
    assert answer["usage"]["completion_tokens"] == limit
    assert answer["choices"][0]["finish_reason"] == "length"


def test_a_minimum_of_generated_tokens(ask: Asked) -> None:
    prompt = "word " * 50 + "Answer only: OK"
    answer = ask.chat(prompt, min_tokens=30, max_tokens=60, temperature=0).json()
    assert answer["usage"]["completion_tokens"] >= 30


def test_equal_requests_hit_the_cache_and_give_equal_text(ask: Asked) -> None:
    prompt = "The fox and the hen went to the market to buy a basket. " * 30
    first = ask.chat(prompt, max_tokens=8, temperature=0).json()
    second = ask.chat(prompt, max_tokens=8, temperature=0).json()
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert second["choices"][0]["message"] == first["choices"][0]["message"]


def test_several_choices(ask: Asked) -> None:
    answer = ask.chat("Write a line of a poem.", n=3, temperature=1.2, seed=5, max_tokens=12).json()
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    assert len(set(texts)) > 1
    assert answer["usage"]["completion_tokens"] <= 36


def test_a_client_that_leaves_gives_its_blocks_back(ask: Asked, real: Gateway) -> None:
    body = {"model": ask.model, "prompt": "Once upon a time", "max_tokens": 2000, "ignore_eos": True, "stream": True}
    with ask.client.stream("POST", COMPLETIONS, json=body) as answer:
        next(answer.iter_raw())
        assert real.fleet.routes[0].admission.used == 1
    wait_until(lambda: real.fleet.routes[0].admission.used == 0)
    wait_until(lambda: sample(ask.client.get("/metrics").text, "gateway_kv_blocks_used", model=ask.model) == 0)
    assert sample(ask.client.get("/metrics").text, "gateway_kv_blocks", model=ask.model) > 0


# --- the official client ----------------------------------------------------------------------------------------------


def test_the_official_client(openai_real: OpenAI, model: str) -> None:
    answer = openai_real.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        temperature=0,
        max_tokens=20,
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 20
    stream = openai_real.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        temperature=0,
        max_tokens=20,
        stream=True,
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == answer.choices[0].message.content
    completion = openai_real.completions.create(
        model=model, prompt="The capital of France is", temperature=0, max_tokens=3
    )
    assert "Paris" in completion.choices[0].text
    with pytest.raises(BadRequestError):
        openai_real.completions.create(model=model, prompt="x", logit_bias={"999999": 1})


def test_metrics_tell_of_tokens(ask: Asked, model: str) -> None:
    ask.said("Hi", max_tokens=4)
    shown = ask.client.get("/v1/metrics").text
    assert model in shown
    text = ask.client.get("/metrics").text
    for name in ("gateway_ttft_seconds_count", "gateway_generated_tokens_total", "gateway_step_seconds_count"):
        assert any(line.startswith(name) and not line.endswith(" 0.0") for line in text.splitlines()), name
