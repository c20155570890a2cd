"""What a worker asks its media helpers for, and what they answer.

Each message is one MessagePack message with its length before it. Samples and pixels follow theirs as raw bytes.
"""

from typing import Literal

from msgspec import Struct

from pipelines.base import InvalidRequest
from pipelines.messages.frames import ErrorCode


class Fit(Struct, frozen=True, kw_only=True):
    """What size a picture is brought to."""

    width: int
    height: int
    shortest_edge: int | None = None  # resized to have this, then cropped to its middle; None: resized as it is
    resample: int  # one of Pillow's `Image.Resampling`


class PictureJob(Struct, frozen=True, kw_only=True, tag="picture"):
    """An encoded picture to RGB and alpha."""

    param: str  # the field of the request that it came in
    path: str | None = None
    data: bytes = b""  # the file itself, where there is no path
    fit: Fit | None = None
    max_pixels: int | None = None  # that are accepted, where that is less than what is decoded at all
    background: Literal["white"] | None = None  # what transparent pixels show; None: the colour that the file has there


class AudioJob(Struct, frozen=True, kw_only=True, tag="audio"):
    """A file's first audio track to mono. Its samples follow in `Piece`s, then `Whole`."""

    path: str
    rate: int  # Hz, of the result
    max_seconds: float


class Piece(Struct, frozen=True, tag="piece"):
    """So many int16 samples follow."""

    samples: int


class Whole(Struct, frozen=True, tag="whole"):
    """That was all."""


class Pixels(Struct, frozen=True, tag="pixels"):
    """The answer to a PictureJob: [height, width, 3] of RGB follow, and with `alpha` [height, width] of it."""

    width: int
    height: int
    alpha: bool
    full_width: int  # of the upright picture, before it was brought to a size
    full_height: int


class Refused(Struct, frozen=True, tag="refused"):
    """The last answer to a job that can't be done: an InvalidRequest."""

    message: str
    param: str | None = None
    code: ErrorCode = "invalid_request"
    detail: str = ""  # for the log: what a library raised, where nobody expected it

    @classmethod
    def of(cls, refusal: InvalidRequest) -> "Refused":
        return cls(refusal.message, refusal.param, refusal.code)

    def refusal(self) -> InvalidRequest:
        return InvalidRequest(self.message, self.param, self.code)


MediaJob = AudioJob | PictureJob
MediaAnswer = Piece | Whole | Pixels | Refused
