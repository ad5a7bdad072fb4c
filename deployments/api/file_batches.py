"""/v1/vector_stores/{id}/file_batches."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from deployments.api.dependencies import Cursor, Owner, Service, Settings
from deployments.api.shapes import BatchId, FileBatchShape, Listing, StoreFileShape, StoreId
from deployments.api.store_files import attachment_answer
from deployments.api.strict import StrictRoute
from deployments.api.wire import CreateFileBatch, Json, counts_answer, page_answer, polled
from rag.types import FileBatch, FileStatus

router = APIRouter(prefix="/v1/vector_stores/{vector_store_id}/file_batches", route_class=StrictRoute)


@router.post("", response_model=FileBatchShape)
async def create_batch(
    vector_store_id: StoreId, owner: Owner, service: Service, settings: Settings, body: CreateFileBatch
) -> Json:
    """Attach several files at once; an unknown one is listed as failed. The answer waits a little for ingestion."""
    batch = await service.create_batch(owner, vector_store_id, body.to_new(service.options.chunking))
    return polled(batch_answer(batch), settings.poll_after_ms)


@router.get("/{batch_id}", response_model=FileBatchShape)
async def get_batch(
    vector_store_id: StoreId, batch_id: BatchId, owner: Owner, service: Service, settings: Settings
) -> Json:
    """One batch; completed once no file of it is in progress, however many failed."""
    batch = await service.get_batch(owner, vector_store_id, batch_id)
    return polled(batch_answer(batch), settings.poll_after_ms)


@router.post("/{batch_id}/cancel", response_model=FileBatchShape)
async def cancel_batch(
    vector_store_id: StoreId, batch_id: BatchId, owner: Owner, service: Service, settings: Settings
) -> Json:
    """Give up what is not ingested yet; what is completed stays, and so does a batch that has ended."""
    batch = await service.cancel_batch(owner, vector_store_id, batch_id)
    return polled(batch_answer(batch), settings.poll_after_ms)


@router.get("/{batch_id}/files", response_model=Listing[StoreFileShape])
async def list_files(
    vector_store_id: StoreId,
    batch_id: BatchId,
    owner: Owner,
    service: Service,
    cursor: Cursor,
    status: Annotated[FileStatus | None, Query(alias="filter")] = None,
) -> Json:
    """The files of a batch, or those in one state."""
    page = await service.list_batch_files(owner, vector_store_id, batch_id, cursor, status=status)
    return Json(page_answer(page, attachment_answer))


def batch_answer(batch: FileBatch) -> dict[str, Any]:
    """OpenAI's object."""
    return {
        "id": batch.id,
        "object": "vector_store.files_batch",
        "created_at": batch.created_at,
        "vector_store_id": batch.store_id,
        "status": batch.status.value,
        "file_counts": counts_answer(batch.file_counts),
    }
