"""Images of a JSON request, which models of more than one kind take."""

from collections.abc import Sequence

from gateway.api.request import HttpRequest, dispatcher, image_reader
from gateway.errors import bad_request
from gateway.requests.routing import Route
from gateway.uploads.images import ImageUrl


async def read_images(request: HttpRequest, images: Sequence[ImageUrl], route: Route) -> list[bytes]:
    """Their bytes, in their order. Raises ApiError (400, 413).

    A model that can't see is refused before anything is read, by those of its kind that can. What a model can that is
    not loaded yet, its worker says.
    """
    if route.takes_images is False:
        seeing = [each.name for each in dispatcher(request).routes if each.kind == route.kind and each.takes_images]
        others = f"those here that do: {', '.join(map(repr, seeing))}" if seeing else "no model here does"
        part = images[0].part
        message = f"{part!r} is an image, and model {route.name!r} takes none; {others}."
        raise bad_request(part, message, code="unsupported_content")
    return await image_reader(request).read(images)


def size_beside(raw: bytes, images: Sequence[ImageUrl]) -> int:
    """Bytes of a body without what it has of images."""
    return max(0, len(raw) - sum(len(image.url) for image in images))
