"""Framing."""

import msgspec

from gateway.http.sse import DONE, KEEP_ALIVE, error_frame, frame


class Payload(msgspec.Struct):
    text: str


def test_a_frame_is_one_data_line_whatever_the_text() -> None:
    text = "a\nb\r\n\n\u2028\x85data: [DONE]\n\n"
    data = frame(Payload(text))
    assert data.startswith(b"data: {")
    assert data.endswith(b"}\n\n")
    assert data.count(b"\n") == 2
    assert b"\r" not in data
    assert msgspec.json.decode(data[6:-2], type=Payload).text == text


def test_the_end_and_the_failure() -> None:
    assert DONE == b"data: [DONE]\n\n"
    assert error_frame(b'{"error":{}}') == b'data: {"error":{}}\n\n'


def test_a_comment_is_a_line_alone() -> None:
    """A blank line would dispatch an event, an id would move the client's last event id."""
    assert KEEP_ALIVE.startswith(b":")
    assert KEEP_ALIVE.count(b"\n") == 1
    assert KEEP_ALIVE.endswith(b"\n")
