"""/v1/vector_stores/{id}/files."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from deployments.api.dependencies import Cursor, Owner, Service, Settings
from deployments.api.shapes import Deleted, Listing, StoreFileShape, StoreId
from deployments.api.strict import StrictRoute
from deployments.api.wire import AttachFile, Json, UpdateFile, deleted_answer, page_answer, polled
from rag.types import Attachment, FileStatus

router = APIRouter(prefix="/v1/vector_stores/{vector_store_id}/files", route_class=StrictRoute)


@router.post("", response_model=StoreFileShape)
async def attach_file(
    vector_store_id: StoreId, owner: Owner, service: Service, settings: Settings, body: AttachFile
) -> Json:
    """Attach an uploaded file; the answer waits a little for its ingestion."""
    attachment = await service.attach(owner, vector_store_id, body.to_new(service.options.chunking))
    return polled(attachment_answer(attachment), settings.poll_after_ms)


@router.get("", response_model=Listing[StoreFileShape])
async def list_files(
    vector_store_id: StoreId,
    owner: Owner,
    service: Service,
    cursor: Cursor,
    status: Annotated[FileStatus | None, Query(alias="filter")] = None,
) -> Json:
    """A store's files, or those in one state."""
    page = await service.list_attachments(owner, vector_store_id, cursor, status=status)
    return Json(page_answer(page, attachment_answer))


@router.get("/{file_id}", response_model=StoreFileShape)
async def get_file(vector_store_id: StoreId, file_id: str, owner: Owner, service: Service, settings: Settings) -> Json:
    """One of a store's files."""
    attachment = await service.get_attachment(owner, vector_store_id, file_id)
    return polled(attachment_answer(attachment), settings.poll_after_ms)


@router.post("/{file_id}", response_model=StoreFileShape)
async def update_file(
    vector_store_id: StoreId, file_id: str, owner: Owner, service: Service, settings: Settings, body: UpdateFile
) -> Json:
    """Replace all attributes; the next search sees them."""
    attachment = await service.set_attributes(owner, vector_store_id, file_id, body.attributes)
    return polled(attachment_answer(attachment), settings.poll_after_ms)


@router.delete("/{file_id}", response_model=Deleted)
async def detach_file(vector_store_id: StoreId, file_id: str, owner: Owner, service: Service) -> Json:
    """Take a file out of a store; it stays uploaded."""
    await service.detach(owner, vector_store_id, file_id)
    return deleted_answer(file_id, "vector_store.file.deleted")


def attachment_answer(attachment: Attachment) -> dict[str, Any]:
    """OpenAI's object; the strategy is always told as static, with its numbers. The name and the counts of chunks and
    tokens are extensions; a file that nobody uploaded has an empty name."""
    error = attachment.last_error
    return {
        "id": attachment.file_id,
        "object": "vector_store.file",
        "usage_bytes": attachment.usage_bytes,
        "chunk_count": attachment.chunk_count,
        "token_count": attachment.token_count,
        "created_at": attachment.created_at,
        "vector_store_id": attachment.store_id,
        "status": attachment.status.value,
        "last_error": None if error is None else {"code": error.code.value, "message": error.message},
        "filename": attachment.filename,
        "chunking_strategy": {
            "type": "static",
            "static": {
                "max_chunk_size_tokens": attachment.chunking.max_chunk_size_tokens,
                "chunk_overlap_tokens": attachment.chunking.chunk_overlap_tokens,
            },
        },
        "attributes": dict(attachment.attributes),
    }
