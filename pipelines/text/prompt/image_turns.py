"""Which turns of a conversation the model's template has places for images in."""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from pipelines.base import InvalidRequest
from pipelines.messages.text import ImagePart, Message, Part


def image_parts(messages: Sequence[Message]) -> list[ImagePart]:
    """In the order of the conversation."""
    return [part for message in messages for part in message.content if isinstance(part, ImagePart)]


def misplaced(messages: Sequence[Message], places: Callable[[Sequence[Message]], int]) -> InvalidRequest | None:
    """What is wrong with the first turn whose images the template has no places for. None: it is not one turn alone.

    `places`: how many the template has for the images of a conversation; may raise InvalidRequest.
    """
    blind = [replace(message, content=_texts(message)) for message in messages]
    for number, message in enumerate(messages):
        parts = image_parts([message])
        if not parts:
            continue
        try:
            found = places([*blind[:number], message, *blind[number + 1 :]])
        except InvalidRequest:
            found = 0
        if found != len(parts):
            refusal = f"the model's chat template has no place for images in such a turn of the role {message.role!r}"
            return InvalidRequest(refusal, parts[0].field or "messages")
    return None


def _texts(message: Message) -> list[Part]:
    return [part for part in message.content if not isinstance(part, ImagePart)]
