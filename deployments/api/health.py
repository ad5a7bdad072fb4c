"""Whether the process lives, and whether it can do its work."""

from __future__ import annotations

from fastapi import APIRouter

from deployments.api.dependencies import Service
from deployments.api.shapes import HealthShape
from deployments.api.wire import Json

router = APIRouter(prefix="/health")


@router.get("/live", response_model=HealthShape)
async def live() -> Json:
    """The process answers."""
    return Json({"status": "live"})


@router.get("/ready", response_model=HealthShape)
async def ready(service: Service) -> Json:
    """A text was embedded and reranked, and the stores answered, just now and within the deadline."""
    await service.check_ready()
    return Json({"status": "ready"})
