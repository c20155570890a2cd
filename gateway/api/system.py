"""Health, readiness and the list of models."""

from time import time

from litestar import Controller, Response
from litestar.di import NamedDependency
from litestar.params import FromPath
from msgspec import Struct, structs

from gateway.backends.base import State
from gateway.endpoint import Endpoint
from gateway.errors import model_not_found
from gateway.http.endpoints import serves
from gateway.requests.fleet import Fleet, ModelStatus, Readiness, UnknownModel
from gateway.requests.routing import Route
from pipelines.kinds import KINDS
from pipelines.messages.sampling import SamplingDefaults

_STARTED = int(time())

PROBES = "for probes; open"
NOT_READY = {503: "Not ready"}

TheFleet = NamedDependency[Fleet]


class Health(Struct, frozen=True):
    status: str


class ModelCard(Struct, frozen=True):
    """OpenAI's model object, and what is known beside it."""

    id: str
    created: int
    kind: str
    root: str  # the model's own name, where `id` is an alias
    aliases: list[str]
    ready: bool
    state: State  # of the replica that is furthest: ready, loading, restarting, failed, …
    slots: int = 0  # requests' units that run at once, over all replicas; 0 while none is ready
    max_model_len: int | None = None
    load_seconds: float | None = None  # what the last load took
    input_modalities: list[str] | None = None  # text, image, audio: what a request may hold
    default_sampling: SamplingDefaults | None = None  # of a text model: what holds where a request does not say
    details: dict[str, str] = {}  # how it runs: device, dtype, attention, …
    reason: str | None = None  # why it is not ready
    object: str = "model"
    owned_by: str = "gateway"


class ModelList(Struct, frozen=True):
    data: list[ModelCard]
    object: str = "list"


class SystemController(Controller):
    """Needs the dependency `fleet`."""

    tags = ("system",)

    @serves(
        Endpoint(
            method="GET",
            path="/health",
            kind=None,
            line=PROBES,
            summary="Whether the process answers. Open",
            access="open",
            probe=True,
        )
    )
    def health(self) -> Health:
        return Health("ok")

    @serves(
        Endpoint(
            method="GET",
            path="/ready",
            kind=None,
            line=PROBES,
            summary="503 until every required model was ready once. Open",
            others=NOT_READY,
            access="open",
            probe=True,
        )
    )
    def ready(self, fleet: TheFleet) -> Response[Readiness]:
        body = fleet.readiness()
        return Response(body, status_code=200 if body.ready else 503)

    @serves(
        Endpoint(
            method="GET",
            path="/ready/{model:path}",
            kind=None,
            line=None,
            summary="503 while the model takes no requests. Open",
            others=NOT_READY,
            access="open",
            probe=True,
        )
    )
    def model_ready(self, fleet: TheFleet, model: FromPath[str]) -> Response[ModelStatus]:
        name = model.strip("/")
        try:
            body = fleet.status(name)
        except UnknownModel as error:
            raise model_not_found(name, error.known) from None
        return Response(body, status_code=200 if body.ready else 503)

    @serves(
        Endpoint(
            method="GET",
            path="/v1/models",
            kind=None,
            line="what is served, and how it runs",
            summary="The served models",
        )
    )
    def models(self, fleet: TheFleet) -> ModelList:
        return ModelList([_card(route, route.name) for route in fleet.routes])

    @serves(
        Endpoint(
            method="GET",
            path="/v1/models/{model:path}",
            kind=None,
            line=None,
            summary="One model, by its name or an alias",
        )
    )
    def model(self, fleet: TheFleet, model: FromPath[str]) -> ModelCard:
        name = model.strip("/")
        for route in fleet.routes:
            if name == route.name or name in route.aliases:
                return _card(route, name)
        raise model_not_found(name, [route.name for route in fleet.routes])


def _card(route: Route, name: str) -> ModelCard:
    replica = route.foremost
    ready = replica.ready
    card = ModelCard(
        id=name,
        created=_STARTED,
        kind=route.kind,
        root=route.name,
        aliases=list(route.aliases),
        ready=route.ready,
        state=replica.state,
        slots=route.admission.total,
        reason=None if route.ready else replica.reason,
    )
    if ready is None:
        return card
    return structs.replace(
        card,
        max_model_len=ready.context_length,
        input_modalities=[*KINDS[route.kind].inputs, *(["image"] if ready.images else [])],
        load_seconds=round(ready.load_seconds, 3),
        default_sampling=ready.sampling,
        details=ready.details,
    )
