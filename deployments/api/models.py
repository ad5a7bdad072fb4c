"""GET /v1/models."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter

from deployments.api.dependencies import Service
from deployments.api.shapes import ModelList, ModelShape
from deployments.api.wire import Json
from rag.inference import ServedModel

router = APIRouter(prefix="/v1")

STARTED = int(time.time())


@router.get("/models", response_model=ModelList)
async def list_models(service: Service) -> Json:
    """The served models."""
    return Json(
        {"object": "list", "data": [_answer(model, model.info.id) for model in await service.inference.models()]}
    )


@router.get("/models/{model:path}", response_model=ModelShape)
async def get_model(model: str, service: Service) -> Json:
    """One served model, by its id or an alias; ids may contain slashes."""
    return Json(_answer(await service.inference.model(model), model))


def _answer(model: ServedModel, name: str) -> dict[str, Any]:
    info = model.info
    answer: dict[str, Any] = {
        "id": name,
        "object": "model",
        "created": STARTED,
        "owned_by": "florilegium",
        "task": model.task,
        "revision": info.revision,
        "max_tokens": info.max_tokens,
        "device": info.device,
        "dtype": info.dtype,
        "engine": info.engine,
    }
    return answer | {"dimensions": info.dimension} if model.task == "embedding" else answer
