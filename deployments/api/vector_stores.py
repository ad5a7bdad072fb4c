"""/v1/vector_stores."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter

from deployments.api.dependencies import Cursor, Owner, Service, Settings
from deployments.api.shapes import Deleted, Listing, StoreId, VectorStoreShape
from deployments.api.strict import StrictRoute
from deployments.api.wire import (
    CreateVectorStore,
    Json,
    UpdateVectorStore,
    counts_answer,
    deleted_answer,
    page_answer,
    polled,
)
from rag.types import VectorStoreRecord

router = APIRouter(prefix="/v1/vector_stores", route_class=StrictRoute)


@router.post("", response_model=VectorStoreShape)
async def create_vector_store(owner: Owner, service: Service, settings: Settings, body: CreateVectorStore) -> Json:
    """Create a store and attach files to it."""
    record = await service.create_store(owner, body.to_new(service.options.chunking))
    return polled(store_answer(record), settings.poll_after_ms)


@router.get("", response_model=Listing[VectorStoreShape])
async def list_vector_stores(owner: Owner, service: Service, cursor: Cursor) -> Json:
    """The owner's stores, newest first unless told otherwise."""
    return Json(page_answer(await service.list_stores(owner, cursor), store_answer))


@router.get("/{vector_store_id}", response_model=VectorStoreShape)
async def get_vector_store(vector_store_id: StoreId, owner: Owner, service: Service, settings: Settings) -> Json:
    """One store."""
    return polled(store_answer(await service.get_store(owner, vector_store_id)), settings.poll_after_ms)


@router.post("/{vector_store_id}", response_model=VectorStoreShape)
async def update_vector_store(
    vector_store_id: StoreId, owner: Owner, service: Service, settings: Settings, body: UpdateVectorStore
) -> Json:
    """Change name, metadata or expiry."""
    record = await service.update_store(owner, vector_store_id, body.to_changes())
    return polled(store_answer(record), settings.poll_after_ms)


@router.delete("/{vector_store_id}", response_model=Deleted)
async def delete_vector_store(vector_store_id: StoreId, owner: Owner, service: Service) -> Json:
    """Remove a store; its files stay uploaded."""
    await service.delete_store(owner, vector_store_id)
    return deleted_answer(vector_store_id, "vector_store.deleted")


def store_answer(record: VectorStoreRecord) -> dict[str, Any]:
    """OpenAI's object; `description` is an extension of it that its own examples show."""
    days = record.expires_after_days
    return {
        "id": record.id,
        "object": "vector_store",
        "created_at": record.created_at,
        "name": record.name,
        "description": record.description,
        "usage_bytes": record.usage_bytes,
        "file_counts": counts_answer(record.file_counts),
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
