"""The pipeline over the real tokenizer and weights."""

import pytest

from pipelines.messages.frames import ModelSpec
from pipelines.messages.text import ChatPrompt, Message, Sampling, StringPrompt, TextOptions, TextPart, TextRequest
from pipelines.text.pipeline import TextPipeline
from tests.pipelines.text.fakes import generate, only, run, submit

pytestmark = pytest.mark.requires_weights


@pytest.fixture(scope="module")
def loaded():
    spec = ModelSpec(
        name="m",
        kind="text",
        pipeline="pipelines.text.pipeline:TextPipeline",
        source="embedded:smollm2-135m-instruct",
        device="cpu",
        threads=1,
        options=TextOptions(kv_cache_tokens=4096),
    )
    return TextPipeline.load(spec)


@pytest.fixture
def pipeline(loaded) -> TextPipeline:
    return loaded[0]


def chat(text: str, **sampling) -> TextRequest:
    return TextRequest(
        prompts=[ChatPrompt([Message("user", [TextPart(text)])])],
        sampling=Sampling(**({"temperature": 0.0, "max_tokens": 24} | sampling)),
    )


def test_ready(loaded):
    ready = loaded[1]
    assert ready.context_length == 4096
    assert ready.slots == 20
    assert ready.details["kv_cache_tokens"] == "4096"


def test_it_continues_a_text(pipeline):
    request = TextRequest(
        prompts=[StringPrompt("The capital of France is")], sampling=Sampling(temperature=0.0, max_tokens=3)
    )
    assert only(generate(pipeline, request)).text.startswith(" Paris")


def test_it_answers_and_stops(pipeline):
    choice = only(generate(pipeline, chat("Hi", max_tokens=60)))
    assert choice.text.startswith("Hello")
    assert choice.reason == "stop"
    assert "<|im_end|>" not in choice.text


def test_bytes_of_the_logprobs_are_the_text(pipeline):
    events = generate(pipeline, chat("Say 🦊 and 你", max_tokens=16, logprobs=20, ignore_eos=True))
    choice = only(events)
    assert [len(entry.top) for entry in choice.logprobs] == [20] * 16
    data = b"".join(entry.raw for entry in choice.logprobs)
    assert data.decode(errors="ignore") == choice.text
    assert all(entry.logprob == entry.top[0].logprob for entry in choice.logprobs)


def test_three_words_of_a_text_as_stop_string(pipeline):
    request = TextRequest(
        prompts=[StringPrompt("one two three four five six")], sampling=Sampling(temperature=0.0, max_tokens=30)
    )
    text = only(generate(pipeline, request)).text
    words = text.split(" ")
    stop = " ".join(words[3:6])
    choice = only(
        generate(
            pipeline,
            TextRequest(prompts=request.prompts, sampling=Sampling(temperature=0.0, max_tokens=30, stop=[stop])),
        )
    )
    assert choice.text == text[: text.index(stop)]
    assert (choice.reason, choice.stop) == ("stop", stop)


def test_seeds(pipeline):
    def text(seed: int) -> str:
        return only(generate(pipeline, chat("Tell me a story", temperature=1.3, seed=seed, max_tokens=40))).text

    texts = [text(seed) for seed in (1, 1, 2, 3)]
    assert texts[0] == texts[1]
    assert len(set(texts)) > 1


def test_log_probabilities_of_a_prompt_are_likelier_for_text_than_for_noise(pipeline):
    def score(text: str) -> float:
        request = TextRequest(prompts=[StringPrompt(text)], sampling=Sampling(max_tokens=0, logprobs=0), echo=True)
        values = [entry.logprob for entry in only(generate(pipeline, request)).logprobs[1:]]
        return sum(values) / len(values)

    assert (
        score("The sun rises in the east and sets in the west.")
        > score("West the in rises sets the sun east and in") + 1
    )


def test_many_at_once(pipeline):
    for number in range(24):
        submit(pipeline, str(number), chat(f"Count from {number}", max_tokens=4 + number % 5, ignore_eos=True))
    done = run(pipeline)
    assert sorted(done) == sorted(map(str, range(24)))
    assert [only(done[str(number)]).tokens for number in range(24)] == [4 + number % 5 for number in range(24)]
