"""Pictures of a text, or of a picture and a text; and those that are fetched from an address."""

import asyncio
import re

import msgspec
from litestar import Controller, Response
from litestar.di import NamedDependency
from litestar.params import FromPath

from gateway.api.answer import new_head
from gateway.api.images.answer import AddressesAnswer, EventPrefix, ImageList, ImagesAnswer, ImageStream
from gateway.api.images.request import EditForm, GenerationBody, parse_form, to_image_request
from gateway.api.request import HttpRequest, json_body, kind, terms, timeline
from gateway.api.texts import decode_texts
from gateway.config.settings import Settings
from gateway.endpoint import EVENTS, JSON, Bodies, Endpoint, FormBody, JsonBody
from gateway.errors import bad_request, not_found
from gateway.http.endpoints import serves
from gateway.requests.dispatch import Dispatcher, Output, Reply, Settling
from gateway.requests.exchange import Job
from gateway.requests.routing import Route
from gateway.uploads.gallery import Gallery
from gateway.uploads.multipart import Form, Limits, read_form
from gateway.uploads.spool import Spool
from pipelines.messages.image import MAX_PROMPT, ImageOptions, ImageRequest

FORM = FormBody(EditForm, files=("image",), optional_files=("mask",))
ANSWERS: Bodies = {JSON: [ImageList], EVENTS: [str]}
FILES = "/v1/images/files/"  # where finished pictures are fetched
MAX_FIELD_BYTES = 2 * 4 * MAX_PROMPT + 64 * 1024  # two prompts in any script, and the rest

_decoder = msgspec.json.Decoder(GenerationBody)
_HOST = re.compile(r"[A-Za-z0-9._:\[\]-]+")


class ImagesController(Controller):
    tags = ("images",)

    @serves(
        Endpoint(
            method="POST",
            path="/v1/images/generations",
            kind="image",
            line="pictures of a text",
            summary="Pictures of a text, streamed or not",
            body=JsonBody(GenerationBody),
            answers=ANSWERS,
        )
    )
    async def generate(
        self,
        request: HttpRequest,
        dispatcher: NamedDependency[Dispatcher],
        gallery: NamedDependency[Gallery],
        settings: NamedDependency[Settings],
    ) -> Reply:
        raw = await json_body(request)
        body = decode_texts(raw, _decoder)
        route = dispatcher.route_or_first(body.model, kind(request))
        work = to_image_request(body, route.settings.options_as(ImageOptions))
        responder = _Responder(request, dispatcher, gallery, settings)
        return responder.reply(body, route, work, "image_generation", body_bytes=len(raw))

    @serves(
        Endpoint(
            method="POST",
            path="/v1/images/edits",
            kind="image",
            line="pictures of a picture and a text",
            summary="Pictures of a picture and a text, streamed or not",
            body=FORM,
            answers=ANSWERS,
        )
    )
    async def edit(
        self,
        request: HttpRequest,
        dispatcher: NamedDependency[Dispatcher],
        gallery: NamedDependency[Gallery],
        settings: NamedDependency[Settings],
        spool: NamedDependency[Spool],
    ) -> Reply:
        content_type = request.headers.get("content-type", "")
        limits = Limits(MAX_FIELD_BYTES, settings.server.max_image_bytes)
        form = await read_form(content_type, request.stream(), spool, FORM.all_files, limits)
        try:
            body = parse_form(form.fields)
            image, mask = _file(form, "image"), _file(form, "mask")
            if image is None:
                raise bad_request("image", "'image' is required: the picture to start from, as a file of the form.")
            route = dispatcher.route_or_first(body.model, kind(request))
            work = to_image_request(body, route.settings.options_as(ImageOptions), image, mask)
            return _Responder(request, dispatcher, gallery, settings).reply(body, route, work, "image_edit", form=form)
        except BaseException:
            form.discard()
            raise

    @serves(
        Endpoint(
            method="GET",
            path=FILES + "{name:str}",
            kind=None,
            line=None,
            summary="A picture of an answer with addresses, until it expires. Open: the name is the secret",
            answers={f"image/{format}": [bytes] for format in ("png", "jpeg", "webp")},
            access="open",  # a page's <img> sends no key
            hidden=r"[A-Za-z0-9_-]+\.[a-z]+",
        )
    )
    async def file(self, gallery: NamedDependency[Gallery], name: FromPath[str]) -> Response[bytes]:
        kept = gallery.find(name)
        try:
            data = await asyncio.to_thread(kept.path.read_bytes) if kept else None
        except FileNotFoundError:  # it went while the thread was waited for
            data = None
        if kept is None or data is None:
            raise not_found("There is no such picture, or it has expired.")
        headers = {
            "cache-control": f"private, max-age={int(gallery.seconds_left(kept))}, immutable",
            "x-content-type-options": "nosniff",
        }
        return Response(data, media_type=kept.media_type, headers=headers)


class _Responder:
    """Where one request comes in and its answer goes out."""

    def __init__(self, request: HttpRequest, dispatcher: Dispatcher, gallery: Gallery, settings: Settings) -> None:
        self._request = request
        self._dispatcher = dispatcher
        self._gallery = gallery
        self._settings = settings

    def reply(
        self,
        body: GenerationBody | EditForm,
        route: Route,
        work: ImageRequest,
        prefix: EventPrefix,
        *,
        body_bytes: int = 0,
        form: Form | None = None,
    ) -> Reply:
        asked = terms(self._request, route.settings)
        id = new_head("img", route.name, route.fingerprint).id
        files = tuple(form.files.values()) if form else ()
        job = Job(id, route, work, work.n, asked, body_bytes, files)
        line = timeline(self._request)
        line.images = work.n
        output: Output
        settling: Settling | None = None
        if body.stream:
            output = ImageStream(prefix, work.output_format, progress=bool(body.progress))
        elif body.response_format == "url":
            output = settling = AddressesAnswer(work.n, work.output_format, self._gallery, self._base_url() + FILES)
        else:
            output = ImagesAnswer(work.n, work.output_format)
        return self._dispatcher.reply(job, output, line, settling=settling)

    def _base_url(self) -> str:
        """What the client calls this server by, unless the configuration says how it is reached."""
        if self._settings.server.public_url is not None:
            return self._settings.server.public_url.rstrip("/")
        request = self._request
        host = request.headers.get("host", "")
        if not _HOST.fullmatch(host):  # HTTP/1.0 sends none
            address = request.scope["server"] or ("localhost", self._settings.server.port)
            host = f"{address[0]}:{address[1]}"
        return f"{request.scope['scheme']}://{host}"


def _file(form: Form, name: str) -> str | None:
    """The path of a file of the form. Raises ApiError (400)."""
    file = form.files.get(name)
    if file is None:
        return None
    if not file.size:
        raise bad_request(name, f"{name!r} is empty.")
    return str(file.path.absolute())
