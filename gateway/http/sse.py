"""Server-sent events as ready bytes (WHATWG HTML, section 9.2): one `data` field an event, JSON on one line."""

import msgspec

MEDIA_TYPE = b"text/event-stream; charset=utf-8"

# Neither proxies nor browsers may keep or rewrite a stream; nginx buffers it unless told otherwise.
HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"content-type", MEDIA_TYPE),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)

DONE = b"data: [DONE]\n\n"

# A comment on a line of its own: with a blank line after it, some clients would see an empty event.
KEEP_ALIVE = b": keep-alive\n"

_encoder = msgspec.json.Encoder()


def frame(payload: msgspec.Struct) -> bytes:
    """One event that carries a wire Struct."""
    return b"data: %b\n\n" % _encoder.encode(payload)


def named_frame(name: str, payload: msgspec.Struct) -> bytes:
    """The same under a name, for listeners that go by it."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encoder.encode(payload))


def error_frame(body: bytes) -> bytes:
    """A failure after the status was sent. The stream ends with it: without `[DONE]`, no client takes it for whole.

    `body` is the JSON that a plain response would have carried, `{"error": …}`.
    """
    return b"data: %b\n\n" % body
