"""The one way from a text endpoint's request to its reply."""

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

from gateway.api.answer import Head, new_head
from gateway.api.image_urls import read_images, size_beside
from gateway.api.request import HttpRequest, dispatcher, json_body, kind, terms, timeline
from gateway.api.text.answer import Form, TextAnswer, TextStream, View
from gateway.api.text.images import check_number, with_images
from gateway.api.texts import decode_texts
from gateway.requests.dispatch import Reply
from gateway.requests.exchange import Job
from gateway.uploads.images import ImageUrl
from pipelines.messages.text import TextRequest


class Body(Protocol):
    """What every text endpoint's body says in one way or another."""

    @property
    def model(self) -> str: ...

    @property
    def streamed(self) -> bool: ...

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        ...

    @property
    def images(self) -> Sequence[ImageUrl]: ...


B = TypeVar("B", bound=Body)


class TextHandler(Generic[B]):
    """Of one endpoint: how its body reads as a request, and in which format the events are written."""

    def __init__(
        self,
        body: type[B],
        to_text_request: Callable[[B, str], TextRequest],
        view: Callable[[Head, Form], View],
        prefix: str,
    ) -> None:
        """`to_text_request` takes the body and the tenant, leaves the bytes of images out, and raises ApiError (400);
        `prefix`: of its answers' ids."""
        self._decoder = msgspec.json.Decoder(body)
        self._to_text_request = to_text_request
        self._view = view
        self._prefix = prefix

    async def reply(self, request: HttpRequest) -> Reply:
        """Raises ApiError."""
        raw = await json_body(request)
        body = decode_texts(raw, self._decoder)
        sender = dispatcher(request)
        route = sender.route(body.model, kind(request))
        wanted = terms(request, route.settings)
        work = self._to_text_request(body, wanted.tenant)
        read: list[bytes] = []
        if images := body.images:
            check_number(images, route)
            read = await read_images(request, images, route)
            work = with_images(work, {image.field: data for image, data in zip(images, read, strict=True)})
        choices = len(work.prompts) * work.n
        head = new_head(self._prefix, route.name, route.fingerprint)
        view = self._view(head, Form(choices, work.sampling.logprobs is not None, body.include_usage))
        output = TextStream(view) if body.streamed else TextAnswer(view, choices)
        job = Job(head.id, route, work, choices, wanted, size_beside(raw, images), images=[*map(len, read)])
        return sender.reply(job, output, timeline(request))
