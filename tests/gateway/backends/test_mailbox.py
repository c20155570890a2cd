import asyncio

from hypothesis import given
from hypothesis import strategies as st

from gateway.backends.mailbox import Mailbox
from pipelines.messages.frames import Accepted, Done, Event, Timing, Usage
from pipelines.messages.text import ChoiceDone, Delta, TokenLogprob

PUT = st.tuples(st.integers(0, 2), st.text(max_size=3), st.integers(0, 2))
READ = st.none()


def delta(index: int, text: str, tokens: int = 1, at: float = 0.0) -> Delta:
    return Delta("a", index, text, tokens, at, [TokenLogprob(len(text), text, -1.0, text.encode())] * tokens)


def test_a_reader_that_keeps_up_gets_each_delta_as_it_was_sent() -> None:
    mailbox = Mailbox()
    for sent in (Accepted("a", 1, 0.0), delta(0, "x"), delta(0, "y"), ChoiceDone("a", 0, "stop")):
        mailbox.put(sent)
        [taken] = mailbox.take()
        assert taken is sent
    assert mailbox.take() == []


@given(st.lists(st.one_of(PUT, READ), max_size=300))
def test_merging_loses_and_reorders_nothing_of_a_choice(actions: list[tuple[int, str, int] | None]) -> None:
    mailbox = Mailbox()
    sent: list[Delta] = []
    received: list[Event] = []
    for number, action in enumerate(actions):
        if action is None:
            received.extend(mailbox.take())
        else:
            sent.append(delta(*action, at=float(number)))
            mailbox.put(sent[-1])
    received.extend(mailbox.take())
    for index in range(3):
        theirs = [event for event in sent if event.index == index]
        ours = [event for event in received if isinstance(event, Delta) and event.index == index]
        assert "".join(event.text for event in ours) == "".join(event.text for event in theirs)
        assert sum(event.tokens for event in ours) == sum(event.tokens for event in theirs)
        assert [p for event in ours for p in event.logprobs] == [p for event in theirs for p in event.logprobs]
        assert [event.at for event in ours][-1:] == [event.at for event in theirs][-1:]


def test_what_is_unread_is_bounded_by_the_number_of_choices() -> None:
    mailbox = Mailbox()
    for number in range(10_000):
        mailbox.put(delta(number % 4, "word "))
    unread = mailbox.take()
    assert [event.tokens for event in unread if isinstance(event, Delta)] == [2500] * 4


def test_a_choice_ends_after_its_last_delta_and_the_call_after_all() -> None:
    mailbox = Mailbox()
    done = Done("a", Usage(), Timing())
    for event in (delta(0, "x"), delta(1, "p"), delta(0, "y"), ChoiceDone("a", 0, "stop"), delta(1, "q"), done):
        mailbox.put(event)
    first, second, *rest = mailbox.take()
    assert isinstance(first, Delta)
    assert isinstance(second, Delta)
    assert (first.text, second.text) == ("xy", "pq")
    assert rest == [ChoiceDone("a", 0, "stop"), done]


async def test_a_waiting_reader_is_woken_once_there_is_something() -> None:
    mailbox = Mailbox()
    waiting = asyncio.ensure_future(mailbox.read())
    await asyncio.sleep(0)
    assert not waiting.done()
    mailbox.put(delta(0, "x"))
    mailbox.put(delta(0, "y"))  # in the same turn of the loop: taken with it
    assert [event.text for event in await waiting if isinstance(event, Delta)] == ["xy"]
    mailbox.put(delta(0, "z"))
    assert len(await mailbox.read()) == 1  # at once while there is something


async def test_a_reader_that_stops_waiting_can_come_back() -> None:
    mailbox = Mailbox()
    waiting = asyncio.ensure_future(mailbox.read())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    mailbox.put(delta(0, "x"))
    assert len(await mailbox.read()) == 1
