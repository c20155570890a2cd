"""What is measured: for Prometheus, and for people and programs."""

from litestar import Controller, Request, Response
from litestar.datastructures import State
from litestar.di import NamedDependency

from gateway.endpoint import TEXT, Endpoint
from gateway.http.endpoints import serves
from metrics.registry import Registry
from metrics.snapshot import Snapshot

LINE = "for Prometheus; percentiles as JSON"


class MetricsController(Controller):
    """Needs the dependency `registry`."""

    tags = ("metrics",)

    @serves(
        Endpoint(
            method="GET",
            path="/metrics",
            kind=None,
            line=LINE,
            summary="Prometheus text, or OpenMetrics where Accept asks for it",
            answers={TEXT: [str], "application/openmetrics-text": [str]},
            access="metrics",
            probe=True,
        )
    )
    def prometheus(
        self, request: Request[object, object, State], registry: NamedDependency[Registry]
    ) -> Response[bytes]:
        body, content_type = registry.render(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})

    @serves(
        Endpoint(
            method="GET",
            path="/v1/metrics",
            kind=None,
            line=LINE,
            summary="Percentiles, goodput and counters of each model",
            access="metrics",
            probe=True,
        )
    )
    def snapshot(self, registry: NamedDependency[Registry]) -> Snapshot:
        return registry.snapshot()
