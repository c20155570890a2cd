"""`/metrics` for Prometheus, `/v1/metrics` for people and programs."""

from litestar import Controller, Request, Response, get
from litestar.datastructures import State
from litestar.di import NamedDependency

from metrics.registry import Registry
from metrics.snapshot import Snapshot


class MetricsController(Controller):
    """Needs the dependency `registry`."""

    tags = ("metrics",)

    @get("/metrics", summary="Prometheus text, or OpenMetrics where Accept asks for it", sync_to_thread=False)
    def prometheus(
        self, request: Request[object, object, State], registry: NamedDependency[Registry]
    ) -> Response[bytes]:
        body, content_type = registry.render(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})

    @get("/v1/metrics", summary="Percentiles, goodput and counters of each model", sync_to_thread=False)
    def snapshot(self, registry: NamedDependency[Registry]) -> Snapshot:
        return registry.snapshot()
