"""/v1/vector_stores."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter

from deployments.api.dependencies import Cursor, Owner, Service, Settings
from deployments.api.strict import StrictRoute
from deployments.api.wire import CreateVectorStore, Json, UpdateVectorStore, deleted_answer, page_answer
from deployments.settings import ApiSettings
from rag.types import VectorStoreRecord

router = APIRouter(prefix="/v1/vector_stores", route_class=StrictRoute)


@router.post("")
async def create_vector_store(owner: Owner, service: Service, settings: Settings, body: CreateVectorStore) -> Json:
    """Create a store and attach files to it."""
    return _respond(await service.create_store(owner, body.to_new(service.options.chunking)), settings)


@router.get("")
async def list_vector_stores(owner: Owner, service: Service, cursor: Cursor) -> Json:
    """The owner's stores, newest first unless told otherwise."""
    return Json(page_answer(await service.list_stores(owner, cursor), store_answer))


@router.get("/{vector_store_id}")
async def get_vector_store(vector_store_id: str, owner: Owner, service: Service, settings: Settings) -> Json:
    """One store."""
    return _respond(await service.get_store(owner, vector_store_id), settings)


@router.post("/{vector_store_id}")
async def update_vector_store(
    vector_store_id: str, owner: Owner, service: Service, settings: Settings, body: UpdateVectorStore
) -> Json:
    """Change name, metadata or expiry."""
    return _respond(await service.update_store(owner, vector_store_id, body.to_changes()), settings)


@router.delete("/{vector_store_id}")
async def delete_vector_store(vector_store_id: str, owner: Owner, service: Service) -> Json:
    """Remove a store; its files stay uploaded."""
    await service.delete_store(owner, vector_store_id)
    return deleted_answer(vector_store_id, "vector_store.deleted")


def _respond(record: VectorStoreRecord, settings: ApiSettings) -> Json:
    answer = store_answer(record)
    waits = answer["status"] == "in_progress"
    return Json(answer, headers={"openai-poll-after-ms": str(settings.poll_after_ms)} if waits else None)


def store_answer(record: VectorStoreRecord) -> dict[str, Any]:
    """OpenAI's object; `description` is an extension of it that its own examples show."""
    counts = record.file_counts
    days = record.expires_after_days
    return {
        "id": record.id,
        "object": "vector_store",
        "created_at": record.created_at,
        "name": record.name,
        "description": record.description,
        "usage_bytes": record.usage_bytes,
        "file_counts": {
            "in_progress": counts.in_progress,
            "completed": counts.completed,
            "failed": counts.failed,
            "cancelled": counts.cancelled,
            "total": counts.total,
        },
        "status": _status(record),
        "expires_after": None if days is None else {"anchor": "last_active_at", "days": days},
        "expires_at": record.expires_at,
        "last_active_at": record.last_active_at,
        "metadata": dict(record.metadata or {}),
    }


def _status(record: VectorStoreRecord) -> str:
    if record.expires_at is not None and record.expires_at <= time.time():
        return "expired"
    return "in_progress" if record.file_counts.in_progress else "completed"
