import socket
import threading
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrics.definitions.text import KV_BLOCKS, PREEMPTIONS
from pipelines.kinds import EMBEDDING, TEXT, Kind
from pipelines.messages.base import Options
from pipelines.messages.frames import (
    Abort,
    Accepted,
    Done,
    Drain,
    Failed,
    Feed,
    Load,
    Malformed,
    ModelSpec,
    Open,
    Ping,
    Pong,
    Stats,
    Step,
    StepReport,
    Timing,
    Usage,
)
from pipelines.messages.text import (
    ChatPrompt,
    Delta,
    Message,
    Sampling,
    TextOptions,
    TextPart,
    TextRequest,
    TokenLogprob,
    TokenPrompt,
    TopLogprob,
)
from pipelines.runtime.ipc import (
    HEADER,
    MAX_FRAME,
    FrameError,
    WorkerChannel,
    encode_frame,
    from_worker_reader,
    load_frame,
    receive_load,
    to_worker_reader,
)

TO_WORKER = [
    Open(
        "a",
        TextRequest(
            prompts=[
                ChatPrompt([Message("user", [TextPart("naïve 🦊")])]),
                TokenPrompt([1, 2, 3]),
            ],
            sampling=Sampling(logit_bias={5: -100.0}, stop=["\n"]),
            n=2,
        ),
        priority="batch",
        deadline=1.5,
    ),
    Feed("a", bytes(range(256)) * 40),
    Abort("a"),
    Ping(7),
    Drain(),
]
FROM_WORKER = [
    Step(
        [
            Accepted("a", 3, 0.25),
            Delta("a", 1, "🦊", 1, 0.5, [TokenLogprob(9, "�", -0.5, b"\xf0", [TopLogprob(8, "x", -1.0, b"x")])]),
            Done("a", Usage(3, 1), Timing(total=0.75)),
            Failed("b", "invalid_request", "no", "messages[0]"),
        ],
        StepReport("decode", 2, 2, 0.125),
    ),
    Stats(1, 0, {PREEMPTIONS.series(): 4.0}, {KV_BLOCKS.series(): 2.0}),
    Pong(7, 0.5),
]


@given(st.lists(st.integers(1, 400), min_size=1))
def test_messages_survive_any_split_of_the_stream(sizes: list[int]) -> None:
    for reader, sent in ((to_worker_reader(TEXT), TO_WORKER), (from_worker_reader(TEXT), FROM_WORKER)):
        stream = b"".join(encode_frame(message) for message in sent)
        received: list[object] = []
        at, turn = 0, 0
        while at < len(stream):
            size = sizes[turn % len(sizes)]
            received.extend(reader.feed(stream[at : at + size]))
            at, turn = at + size, turn + 1
        assert received == sent


def test_an_oversized_frame_is_refused_by_its_header() -> None:
    with pytest.raises(FrameError, match="over the limit"):
        to_worker_reader(TEXT).feed((MAX_FRAME + 1).to_bytes(HEADER, "little"))


def test_a_frame_that_is_no_message_is_refused() -> None:
    with pytest.raises(FrameError, match="undecodable"):
        to_worker_reader(TEXT).feed(encode_frame(Pong(1, 0.0)))


def test_a_message_posted_while_another_thread_writes_follows_that_write() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = WorkerChannel(theirs, TEXT)
        writer = threading.Thread(target=channel.send, args=(step_of(4_000_000),))
        writer.start()  # fills the socket, then waits for room
        assert ours.recv(1, socket.MSG_PEEK)
        channel.post(Pong(1, 0.0))  # does not wait for it
        reader = from_worker_reader(TEXT)
        received: list[object] = []
        while len(received) < 2:
            received.extend(reader.feed(ours.recv(1 << 20)))
        writer.join()
        assert [type(message) for message in received] == [Step, Pong]


def test_a_message_posted_into_a_full_socket_is_dropped_and_leaves_the_stream_whole() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = WorkerChannel(theirs, TEXT)
        posted = 20_000
        for number in range(posted):
            channel.post(Pong(number, 0.0))
        ours.setblocking(False)
        reader = from_worker_reader(TEXT)
        received: list[object] = []
        with suppress(BlockingIOError):
            while True:
                received.extend(reader.feed(ours.recv(1 << 20)))
        assert 0 < len(received) < posted
        assert received == [Pong(number, 0.0) for number in range(len(received))]


def step_of(length: int) -> Step:
    return Step([Delta("a", 0, "x" * length, 1, 0.0)])


SPEC = ModelSpec(name="m", kind="text", pipeline="a:B", source="/m", options=TextOptions(max_num_seqs=3))


def first_frame(data: bytes | bytearray) -> tuple[Kind, Load[Options]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(data)
        ours.shutdown(socket.SHUT_WR)
        return receive_load(theirs)


def test_the_first_frame_names_the_card_that_the_others_are_read_by() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(load_frame(SPEC) + encode_frame(TO_WORKER[0]))
        kind, load = receive_load(theirs)
        assert (kind, load.spec) == (TEXT, SPEC)
        assert WorkerChannel(theirs, kind).receive() == TO_WORKER[:1]  # what came with it is still there


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (encode_frame(Load("pipelines.kinds:SMELL", SPEC)), "there is no card 'pipelines.kinds:SMELL'"),
        (encode_frame(Load("nowhere:CARD", SPEC)), "there is no card 'nowhere:CARD'"),
        (encode_frame(Load("pipelines.kinds:KINDS", SPEC)), "is no card of a kind"),
        (encode_frame(Load(EMBEDDING.card, SPEC)), "unknown field"),  # the options are of another kind
        (encode_frame(Pong(1, 0.0)), "undecodable"),
        (b"\xff\xff\xff\xff", "over the limit"),
    ],
)
def test_a_first_frame_that_is_none_is_refused(frame: bytes, says: str) -> None:
    with pytest.raises(FrameError, match=says):
        first_frame(frame)
    with pytest.raises(EOFError):
        first_frame(frame[:3])


def test_a_kind_takes_no_request_of_another() -> None:
    (refused,) = to_worker_reader(EMBEDDING).feed(encode_frame(TO_WORKER[0]))
    assert isinstance(refused, Malformed)
    assert (refused.id, refused.param) == ("a", "type")
