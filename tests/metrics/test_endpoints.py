from litestar.di import Provide
from litestar.testing import create_test_client

from gateway.api.metrics import MetricsController
from metrics.registry import Registry
from pipelines.kinds import metrics_by_kind
from tests.metrics.factories import timeline


def test_both_endpoints_read_the_injected_registry() -> None:
    registry = Registry(metrics_by_kind())
    registry.request("smol", "text", timeline())
    provide = {"registry": Provide(lambda: registry, sync_to_thread=False)}
    with create_test_client(MetricsController, dependencies=provide) as client:
        text = client.get("/metrics")
        assert text.headers["content-type"].startswith("text/plain")
        assert 'gateway_requests_total{model="smol",outcome="stop",pipeline="text"} 1.0' in text.text
        openmetrics = client.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
        assert openmetrics.headers["content-type"].startswith("application/openmetrics-text")
        (model,) = client.get("/v1/metrics").json()["models"]
        assert model["windows"]["1m"]["ttft_seconds"]["count"] == 1
