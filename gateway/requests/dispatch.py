"""Runs exchanges for HTTP clients: one body, or server-sent events."""

import asyncio
import logging
from collections.abc import Sequence
from time import monotonic
from typing import Protocol

from gateway import errors
from gateway.asgi import Headers, Message, Receive, Scope, Send, disconnected
from gateway.errors import ApiError
from gateway.http import sse
from gateway.http.request_log import Work, worked
from gateway.requests.exchange import Exchange, Job
from gateway.requests.fleet import Fleet, UnknownModel
from gateway.requests.routing import Route
from metrics.registry import Registry
from metrics.timeline import Phases, Timeline, phases
from pipelines.messages.base import Said
from pipelines.messages.frames import Accepted, Done, Failed

logger = logging.getLogger("gateway")

HEARTBEAT_S = 15.0  # a started stream that is silent for so long gets a comment
LAST_WORDS_S = 5.0  # what a client has to take the error frame that ends its stream


class Output(Protocol):
    """One answer in the form that its client asked for. Events go in, in order, `Accepted` and `Failed` excepted."""

    @property
    def streamed(self) -> bool:
        """Whether bytes leave as they come; else the answer is one body, which `finish` returns."""
        ...

    def render(self, event: Said) -> bytes:
        """What to send for an event; empty where there is nothing to say yet."""
        ...

    def finish(self, done: Done, spent: Phases) -> bytes:
        """The rest."""
        ...


class Settling(Protocol):
    """An output of which something has to be put in place before it is finished."""

    async def settle(self) -> None:
        """Raises ApiError, or is cancelled: it leaves nothing behind then."""
        ...


class Reply:
    """The ASGI response that runs an exchange.

    No status is sent before the first output is in hand, so whatever goes wrong until then is a plain error response,
    streamed or not; the client is watched from the start, in the queue too.
    """

    def __init__(
        self,
        exchange: Exchange,
        output: Output,
        content_type: bytes = b"application/json",
        settling: Settling | None = None,
    ) -> None:
        self._exchange = exchange
        self._output = output
        self._settling = settling
        self._content_type = content_type  # of an answer that is one body
        self._started = False
        self._last = False  # the last bytes are on their way: a client that leaves now has all of it
        self._wrote = 0.0
        self._heartbeat: asyncio.TimerHandle | None = None
        self._beat: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = self._exchange
        worked(scope, Work(exchange.route.name, exchange.timeline))
        failure: ApiError | None = None
        watcher = asyncio.create_task(self._watch(receive))
        try:
            with exchange:
                await self._answer(send)
        except ApiError as error:
            failure = error
        except Exception:
            logger.exception("a request broke")
            failure = errors.internal_error()
        finally:
            watcher.cancel()
            if self._heartbeat is not None:
                self._heartbeat.cancel()
            if self._beat is not None:
                self._beat.cancel()
        if failure is None:
            return
        if not self._started:
            raise failure
        if self._output.streamed and failure.status != errors.CLIENT_CLOSED_REQUEST:
            await self._last_words(send, sse.error_frame(failure.encode()))

    async def _answer(self, send: Send) -> None:
        exchange, output = self._exchange, self._output
        await exchange.open()
        while True:
            data = bytearray()
            said = False
            for event in await exchange.next():
                match event:
                    case Accepted():
                        pass
                    case Done():
                        if self._settling is not None:
                            await self._settling.settle()
                        spent = phases(exchange.timeline)
                        data += output.finish(event, spent)
                        await self._send(send, data, last=spent)
                        return
                    case Failed():
                        if data and self._started:
                            await self._send(send, data)
                        raise exchange.failed(event)
                    case _:
                        said = True
                        data += output.render(event)
            if said and output.streamed:
                await self._send(send, data)

    async def _send(self, send: Send, data: bytearray, *, last: Phases | None = None) -> None:
        timeline = self._exchange.timeline
        if self._beat is not None:
            await self._beat
            self._beat = None
        self._last = last is not None
        since = monotonic()
        if not self._started:
            self._started = True
            await send({"type": "http.response.start", "status": 200, "headers": self._headers(data, last)})
            if self._output.streamed and last is None:
                self._heartbeat = asyncio.get_running_loop().call_later(HEARTBEAT_S, self._on_heartbeat, send)
        if data or last is not None:
            await send({"type": "http.response.body", "body": bytes(data), "more_body": last is None})
            self._wrote = since
        timeline.wrote(since)

    def _headers(self, data: bytearray, spent: Phases | None) -> Headers:
        if self._output.streamed or spent is None:
            return list(sse.HEADERS)
        return [
            (b"content-type", self._content_type),
            (b"content-length", b"%d" % len(data)),
            (b"x-gateway-timing", timing_header(spent)),
        ]

    async def _last_words(self, send: Send, data: bytes) -> None:
        try:
            async with asyncio.timeout(LAST_WORDS_S):
                await send({"type": "http.response.body", "body": data, "more_body": False})
        except TimeoutError:
            pass  # it reads nothing: the server closes the connection

    async def _watch(self, receive: Receive) -> None:
        await disconnected(receive)
        if not self._last:
            self._exchange.interrupt(errors.client_closed())

    def _on_heartbeat(self, send: Send) -> None:
        due = self._wrote + HEARTBEAT_S
        now = monotonic()
        if now >= due and self._exchange.silent:
            # The writer waits for the model, so nobody else writes; before it does, it waits for this.
            message: Message = {"type": "http.response.body", "body": sse.KEEP_ALIVE, "more_body": True}
            self._beat = asyncio.get_running_loop().create_task(_to_the_end(send, message))
            self._wrote = now
            due = now + HEARTBEAT_S
        self._heartbeat = asyncio.get_running_loop().call_later(max(0.01, due - now), self._on_heartbeat, send)


class Dispatcher:
    """From a model's name to a reply. One for the gateway."""

    def __init__(self, registry: Registry, fleet: Fleet) -> None:
        self._registry = registry
        self._fleet = fleet

    @property
    def routes(self) -> Sequence[Route]:
        return self._fleet.routes

    def route(self, model: str, kind: str) -> Route:
        """The route of a name or alias that serves `kind`. Raises ApiError (404, 400)."""
        try:
            route = self._fleet.route(model)
        except UnknownModel as error:
            raise errors.model_not_found(model, error.known) from None
        if route.kind != kind:
            fitting = ", ".join(repr(each.name) for each in self._fleet.routes if each.kind == kind) or "none"
            raise errors.bad_request(
                "model", f"Model {model!r} serves {route.kind}; this endpoint needs a model for {kind}: {fitting}."
            )
        return route

    def route_or_first(self, model: str | None, kind: str) -> Route:
        """The same; with no name, of the first model of the kind. Raises ApiError (404, 400)."""
        if model:
            return self.route(model, kind)
        for route in self._fleet.routes:
            if route.kind == kind:
                return self._fleet.route(route.name)
        raise errors.no_model(kind)

    def exchange(self, job: Job, timeline: Timeline) -> Exchange:
        """A valid request that is yet to be opened."""
        return Exchange(job, timeline, self._registry)

    def reply(
        self,
        job: Job,
        output: Output,
        timeline: Timeline,
        content_type: bytes = b"application/json",
        settling: Settling | None = None,
    ) -> Reply:
        """The response to a valid request; nothing happens before it is called."""
        return Reply(self.exchange(job, timeline), output, content_type, settling)


def timing_header(spent: Phases) -> bytes:
    """Milliseconds, as a dictionary of structured fields (RFC 9651)."""
    parts = b"queue=%.3f, prepare=%.3f, compute=%.3f, total=%.3f" % (
        spent.queue * 1e3,
        spent.prepare * 1e3,
        spent.compute * 1e3,
        spent.total * 1e3,
    )
    return parts + b", encode=%.3f" % (spent.encode * 1e3) if spent.encode else parts


async def _to_the_end(send: Send, message: Message) -> None:
    await send(message)
