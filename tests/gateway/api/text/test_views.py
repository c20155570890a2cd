"""What every text endpoint does alike: a view of its own is all that one adds."""

from collections.abc import Sequence

import msgspec
import pytest
from msgspec import UNSET, UnsetType

from gateway.api.answer import Head, Timing, Usage, timing
from gateway.api.text.answer import Choice, Form, TextAnswer, TextStream, View
from gateway.api.text.chat_answer import ChatView
from gateway.api.text.completion_answer import CompletionView
from gateway.requests.dispatch import timing_header
from metrics.timeline import Phases
from pipelines.messages import frames
from pipelines.messages.base import Said
from pipelines.messages.frames import Done
from pipelines.messages.text import ChoiceDone, Delta, FinishReason, TokenLogprob

HEAD = Head("id", 0, "m", "fp")
SPENT = Phases(queue=0.001, prepare=0.002, compute=0.003, total=0.006)
DONE = Done("r", frames.Usage(prompt_tokens=3, completion_tokens=2), frames.Timing())


def delta(text: str, index: int = 0, logprobs: Sequence[TokenLogprob] = ()) -> Delta:
    return Delta("r", index, text, 1, 0.0, list(logprobs))


class Lines:
    """A view that writes down what it is asked for."""

    def body(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        told = [f"{choice.text}/{len(choice.logprobs)}/{choice.reason}" for choice in choices]
        return f"{'|'.join(told)} {usage.total_tokens}".encode()

    def delta(self, index: int, text: str, logprobs: list[TokenLogprob]) -> bytes:
        return f"{index}:{text}/{len(logprobs)} ".encode()

    def opening(self, index: int) -> bytes:
        return f"open:{index} ".encode()

    def finish(self, index: int, reason: FinishReason, timing: Timing | UnsetType) -> bytes:
        return f"{index}:{reason}{'' if timing is UNSET else f'@{timing.total:g}'} ".encode()

    def end(self, usage: Usage) -> bytes:
        return f"end:{usage.total_tokens}".encode()


ENTRY = TokenLogprob(7, "x", -0.5, b"x")
EVENTS: list[Said] = [
    delta("a"),
    delta(""),
    delta("b", 1, [ENTRY]),
    ChoiceDone("r", 0, "stop"),
    delta("", 1, [ENTRY]),
    ChoiceDone("r", 1, "length"),
]


def test_an_answer_has_all_of_each_choice() -> None:
    answer = TextAnswer(Lines(), 2)
    assert [answer.render(event) for event in EVENTS] == [b""] * len(EVENTS)
    assert answer.finish(DONE, SPENT) == b"a/0/stop|b/2/length 5"


def test_a_finish_waits_for_the_next_event_and_the_last_one_has_the_timing() -> None:
    stream = TextStream(Lines())
    assert [stream.render(event) for event in EVENTS] == [
        b"0:a/0 ", b"", b"1:b/1 ", b"open:0 ", b"0:stop 1:/1 ", b"open:1 "
    ]  # fmt: skip
    assert stream.finish(DONE, SPENT) == b"1:length@6 end:5"


@pytest.mark.parametrize("include_usage", [False, True])
def test_chat_and_completions_differ_in_nothing_but_their_format(include_usage: bool) -> None:
    def chunks(view: View) -> list[tuple[object, ...]]:
        stream = TextStream(view)
        data = b"".join(map(stream.render, EVENTS)) + stream.finish(DONE, SPENT)
        *found, last, rest = data.split(b"\n\n")
        assert (last, rest) == (b"data: [DONE]", b"")
        shown: list[tuple[object, ...]] = []
        for each in found:
            chunk = msgspec.json.decode(each.removeprefix(b"data: "))
            choice = chunk["choices"][0] if chunk["choices"] else {}
            text = choice.get("text", choice.get("delta", {}).get("content")) or ""
            logprobs = choice.get("logprobs") is not None
            shown.append((choice.get("index"), text, logprobs, choice.get("finish_reason"), chunk.get("usage", UNSET)))
        return shown

    form = Form(2, logprobs=True, include_usage=include_usage)
    assert chunks(ChatView(HEAD, form)) == chunks(CompletionView(HEAD, form))


def test_the_time_that_images_took_is_told_where_there_were_some() -> None:
    assert timing(SPENT).encode is UNSET
    assert b"encode" not in timing_header(SPENT)
    shown = Phases(queue=0.001, prepare=0.002, compute=0.003, total=0.01, encode=0.004)
    assert timing(shown).encode == 4
    assert timing_header(shown).endswith(b", encode=4.000")
