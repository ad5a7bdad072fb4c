"""What is counted, in the form that Prometheus reads; each app has a registry of its own."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from starlette.requests import Request
from starlette.responses import Response

router = APIRouter()

BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Metrics:
    """Requests by route and status, their duration, and the stages within."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "florilegium_requests", "Answered requests.", ("method", "route", "status"), registry=self.registry
        )
        self._duration = Histogram(
            "florilegium_request_seconds",
            "Until the answer was sent.",
            ("route",),
            registry=self.registry,
            buckets=BUCKETS,
        )
        self._stages = Histogram(
            "florilegium_stage_seconds", "Within a request.", ("stage",), registry=self.registry, buckets=BUCKETS
        )

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answered request; `route` is the pattern, not the path."""
        self._requests.labels(method, route, str(status)).inc()
        self._duration.labels(route).observe(seconds)

    def stages(self, timings: Mapping[str, float]) -> None:
        """Record seconds by stage."""
        for stage, seconds in timings.items():
            self._stages.labels(stage).observe(seconds)


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """The metrics of this replica."""
    registry: CollectorRegistry = request.app.state.metrics.registry
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
