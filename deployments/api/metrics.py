"""What is counted, in the form that Prometheus reads; each app has a registry of its own."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from rag.service import RagService

router = APIRouter()

METHODS = frozenset(("GET", "POST", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS"))  # callers may invent others
BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Metrics:
    """Requests by route and status, their duration, and the stages within."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._parts: dict[str, Gauge] = {}
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
        self._requests.labels(method if method in METHODS else "other", route, str(status)).inc()
        self._duration.labels(route).observe(seconds)

    def parts(self, stats: Mapping[str, Mapping[str, float]]) -> None:
        """Take over what the parts behind this replica count."""
        for part, numbers in stats.items():
            for name, value in numbers.items():
                self._part(f"florilegium_{part}_{name}").set(value)

    def _part(self, name: str) -> Gauge:
        if name not in self._parts:
            self._parts[name] = Gauge(name, "Of the part behind this replica.", registry=self.registry)
        return self._parts[name]

    def stages(self, timings: Mapping[str, float]) -> None:
        """Record seconds by stage."""
        for stage, seconds in timings.items():
            self._stages.labels(stage).observe(seconds)


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """The metrics of this replica, and of the parts behind it."""
    recorder: Metrics = request.app.state.metrics
    service: RagService = request.app.state.service
    recorder.parts(await service.stats())
    return Response(generate_latest(recorder.registry), media_type=CONTENT_TYPE_LATEST)
