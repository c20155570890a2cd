"""Pictures inside a JSON request: a data: URI each, or an address that they are fetched from."""

import asyncio
from collections.abc import Sequence
from ipaddress import ip_network

from msgspec import Struct

from gateway.config.settings import ServerSettings
from gateway.errors import ApiError, bad_request
from gateway.uploads.data_uri import decode_data_uri, is_data_uri, too_large
from gateway.uploads.fetch import Fetcher, FetchRefused, TooLarge


class ImageUrl(Struct, frozen=True):
    url: str
    field: str  # what the caller calls it: messages[0].content[1].image_url.url
    part: str  # and what it is in: messages[0].content[1]


class ImageReader:
    """Of one gateway. Bytes of each picture and of all of a request are bounded; what they are, a decoder sees."""

    def __init__(self, server: ServerSettings, fetcher: Fetcher | None = None) -> None:
        self._max_bytes = server.max_image_bytes
        self._max_request_bytes = server.max_request_image_bytes
        self._fetcher = fetcher or Fetcher(
            server.image_hosts,
            networks=[ip_network(each) for each in server.private_image_networks],
            timeout=server.image_fetch_timeout_s,
        )

    async def read(self, images: Sequence[ImageUrl]) -> list[bytes]:
        """In their order. Raises ApiError (400, 413) naming the field; the others are not waited for then."""
        budget = _Budget(self._max_request_bytes)
        try:
            async with asyncio.TaskGroup() as reading:
                tasks = [reading.create_task(self._read(image, budget)) for image in images]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _read(self, image: ImageUrl, budget: "_Budget") -> bytes:
        def take(size: int) -> None:
            budget.take(size, image.field)

        if is_data_uri(image.url):
            data = await decode_data_uri(image.url, "image", image.field, self._max_bytes)
            take(len(data))
            return data
        try:
            return await self._fetcher.fetch(image.url, self._max_bytes, take)
        except TooLarge:
            raise too_large(image.field, self._max_bytes) from None
        except FetchRefused as refusal:
            raise bad_request(image.field, f"{image.field!r} {refusal}.", code="invalid_image_url") from None


class _Budget:
    """What the pictures of one request may have together."""

    def __init__(self, size: int) -> None:
        self._size = self._left = size

    def take(self, size: int, at: str) -> None:
        self._left -= size
        if self._left < 0:
            message = f"With {at!r} the request's images are larger than the {self._size} bytes that are accepted."
            raise ApiError(413, message, code="payload_too_large", param=at)
