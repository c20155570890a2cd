"""Who is prepared next."""

import threading
from typing import Any

from pipelines.backlog import BATCH_S, LARGE, PATIENCE_S, Backlog
from pipelines.base import Ticket
from pipelines.effort import effort
from pipelines.inbox import OpenRequest
from pipelines.messages import (
    ChatPrompt,
    EmbeddingRequest,
    ImageBytes,
    Message,
    RerankRequest,
    StringPrompt,
    TextPart,
    TextRequest,
    TokenPrompt,
)


def request(id: str, received: float = 0.0, priority: Any = "interactive") -> OpenRequest:
    return OpenRequest(Ticket(id, priority, received))


def order(backlog: Backlog, count: int) -> str:
    return "".join(backlog.take(large=True).ticket.id for _ in range(count))


def test_small_ones_first_then_in_order() -> None:
    backlog = Backlog()
    for id, size in (("a", 5_000), ("b", 10), ("c", 2_000), ("d", 10)):
        backlog.put(request(id), size)
    assert order(backlog, 4) == "bdca"


def test_a_large_one_has_its_turn_once_it_has_waited_for_its_size() -> None:
    backlog = Backlog()
    backlog.put(request("L"), 10 * LARGE)
    waits = 10 * LARGE * PATIENCE_S
    backlog.put(request("a", waits - 0.1), 1)
    backlog.put(request("b", waits + 0.1), 1)
    assert order(backlog, 3) == "aLb"


def test_interactive_before_batch_and_batch_does_not_starve() -> None:
    backlog = Backlog()
    backlog.put(request("B", priority="batch"), 10)
    for number in range(3):
        backlog.put(request(str(number), BATCH_S * number), 10)
    assert order(backlog, 4) == "0B12"


def test_large_ones_leave_a_thread_to_the_others() -> None:
    backlog = Backlog()
    taken: list[str] = []
    thread = threading.Thread(target=lambda: taken.append(backlog.take(large=False).ticket.id))
    backlog.put(request("L"), LARGE + 1)
    thread.start()
    assert taken == []
    backlog.put(request("s"), LARGE)
    thread.join(10)
    assert taken == ["s"]
    assert order(backlog, 1) == "L"


def test_what_there_is_to_read_is_all_that_a_request_has() -> None:
    chat = ChatPrompt([Message("user", [TextPart("four"), TextPart("fives")]), Message("user", [TextPart("six")])])
    assert effort(TextRequest(prompts=[chat], n=2)) == 24
    assert effort(TextRequest(prompts=[StringPrompt("abc"), TokenPrompt([1, 2])])) == 5
    assert effort(EmbeddingRequest(inputs=[StringPrompt("abc"), ImageBytes(bytes(40))])) == 8
    assert effort(RerankRequest(query="q", documents=["ab", "c"])) == 4
