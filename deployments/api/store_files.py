"""/v1/vector_stores/{id}/files."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from deployments.api.dependencies import Cursor, Owner, Service, Settings
from deployments.api.strict import StrictRoute
from deployments.api.wire import AttachFile, Json, UpdateFile, deleted_answer, page_answer
from deployments.settings import ApiSettings
from rag.types import Attachment, FileStatus

router = APIRouter(prefix="/v1/vector_stores/{vector_store_id}/files", route_class=StrictRoute)


@router.post("")
async def attach_file(
    vector_store_id: str, owner: Owner, service: Service, settings: Settings, body: AttachFile
) -> Json:
    """Attach an uploaded file; the answer waits a little for its ingestion."""
    attachment = await service.attach(owner, vector_store_id, body.to_new(service.options.chunking))
    return _respond(attachment, settings)


@router.get("")
async def list_files(
    vector_store_id: str,
    owner: Owner,
    service: Service,
    cursor: Cursor,
    status: Annotated[FileStatus | None, Query(alias="filter")] = None,
) -> Json:
    """A store's files, or those in one state."""
    page = await service.list_attachments(owner, vector_store_id, cursor, status=status)
    return Json(page_answer(page, attachment_answer))


@router.get("/{file_id}")
async def get_file(vector_store_id: str, file_id: str, owner: Owner, service: Service, settings: Settings) -> Json:
    """One of a store's files."""
    return _respond(await service.get_attachment(owner, vector_store_id, file_id), settings)


@router.post("/{file_id}")
async def update_file(
    vector_store_id: str, file_id: str, owner: Owner, service: Service, settings: Settings, body: UpdateFile
) -> Json:
    """Replace all attributes; the next search sees them."""
    return _respond(await service.set_attributes(owner, vector_store_id, file_id, body.attributes), settings)


@router.delete("/{file_id}")
async def detach_file(vector_store_id: str, file_id: str, owner: Owner, service: Service) -> Json:
    """Take a file out of a store; it stays uploaded."""
    await service.detach(owner, vector_store_id, file_id)
    return deleted_answer(file_id, "vector_store.file.deleted")


def _respond(attachment: Attachment, settings: ApiSettings) -> Json:
    waits = attachment.status == FileStatus.IN_PROGRESS
    headers = {"openai-poll-after-ms": str(settings.poll_after_ms)} if waits else None
    return Json(attachment_answer(attachment), headers=headers)


def attachment_answer(attachment: Attachment) -> dict[str, Any]:
    """OpenAI's object; the strategy is always told as static, with its numbers."""
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
        "chunking_strategy": {
            "type": "static",
            "static": {
                "max_chunk_size_tokens": attachment.chunking.max_chunk_size_tokens,
                "chunk_overlap_tokens": attachment.chunking.chunk_overlap_tokens,
            },
        },
        "attributes": dict(attachment.attributes),
    }
