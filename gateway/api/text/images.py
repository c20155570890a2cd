"""The images of a text request: how many there are, and their bytes in their places."""

from collections.abc import Mapping, Sequence

from msgspec import structs

from gateway.errors import bad_request
from gateway.requests.routing import Route
from gateway.uploads.images import ImageUrl
from pipelines.messages.text import ChatPrompt, ImagePart, Message, Part, Prompt, TextOptions, TextRequest


def check_number(images: Sequence[ImageUrl], route: Route) -> None:
    """Raises ApiError (400) where the route's model takes fewer of a request."""
    most = route.settings.options_as(TextOptions).max_images
    if len(images) > most:
        at = images[most].field
        raise bad_request(at, f"{at!r} is one image too many: model {route.name!r} takes {most} of a request.")


def with_images(request: TextRequest, images: Mapping[str, bytes]) -> TextRequest:
    """The request with the bytes of its images, by their fields."""
    return structs.replace(request, prompts=[_of_prompt(prompt, images) for prompt in request.prompts])


def _of_prompt(prompt: Prompt, images: Mapping[str, bytes]) -> Prompt:
    if not isinstance(prompt, ChatPrompt):
        return prompt
    return ChatPrompt([_of_message(message, images) for message in prompt.messages])


def _of_message(message: Message, images: Mapping[str, bytes]) -> Message:
    return structs.replace(message, content=[_of_part(part, images) for part in message.content])


def _of_part(part: Part, images: Mapping[str, bytes]) -> Part:
    return structs.replace(part, data=images[part.field]) if isinstance(part, ImagePart) else part
