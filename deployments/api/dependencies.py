"""What routes ask for by annotation: the service, the owner, a cursor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from fastapi import Depends, Query
from starlette.requests import Request

from deployments.api.auth import owner_of
from deployments.api.metrics import Metrics
from deployments.settings import ApiSettings
from rag.service import RagService
from rag.types import PageRequest


async def _service(request: Request) -> RagService:
    service: RagService = request.app.state.service
    return service


async def _settings(request: Request) -> ApiSettings:
    settings: ApiSettings = request.app.state.settings
    return settings


async def _metrics(request: Request) -> Metrics:
    metrics: Metrics = request.app.state.metrics
    return metrics


async def _cursor(
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
    after: str | None = None,
    before: str | None = None,
) -> PageRequest:
    return PageRequest(limit, order, after or None, before or None)


Service = Annotated[RagService, Depends(_service)]
Settings = Annotated[ApiSettings, Depends(_settings)]
Recorder = Annotated[Metrics, Depends(_metrics)]
Owner = Annotated[str, Depends(owner_of)]
Cursor = Annotated[PageRequest, Depends(_cursor)]


def server_timing(timings: Mapping[str, float]) -> dict[str, str]:
    """Seconds by stage as the standard header that browsers draw."""
    return {"Server-Timing": ", ".join(f"{stage};dur={seconds * 1000:.1f}" for stage, seconds in timings.items())}
