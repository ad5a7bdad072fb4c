"""/v1/files."""

from __future__ import annotations

import mimetypes
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pydantic_core
from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import FileResponse

from deployments.api.dependencies import Owner, Service
from deployments.api.forms import Form, Part
from deployments.api.shapes import UPLOAD_FORM, Deleted, FileShape, Listing
from deployments.api.wire import Json, deleted_answer, page_answer
from rag.errors import InvalidRequest
from rag.service import RagService
from rag.types import FileRecord, PageRequest
from rag.uploads import ReceivedFile

router = APIRouter(prefix="/v1/files")

ANCHOR = "created_at"
MAX_DIGITS = 20  # of a number in a form; Python itself refuses to read thousands
CONTENT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"*/*": {"schema": {"type": "string", "format": "binary"}}}, "description": "The bytes"}
}


@dataclass(slots=True)
class _Upload:
    """What has arrived of a form so far."""

    file: ReceivedFile | None = None
    purpose: str | None = None
    expires: dict[str, object] | None = None


@router.post("", response_model=FileShape, openapi_extra=UPLOAD_FORM)
async def create_file(request: Request, owner: Owner, service: Service) -> Json:
    """Upload a file as multipart/form-data with `file`, `purpose` and, if wanted, `expires_after`, in any order."""
    form = Form(request.headers.get("content-type", ""), request.stream())
    upload = _Upload()
    try:
        async for part in form.parts():
            await _take(part, form, upload, service)
        if upload.file is None:
            raise InvalidRequest("Missing required parameter: 'file'.", "file", "missing_required_parameter")
        seconds = _expiry(upload.expires)
    except BaseException:
        if upload.file is not None:
            await service.discard_file(upload.file)
        raise
    # From here on the bytes stay, whatever the answer: the record may have been written all the same.
    record = await service.create_file(owner, upload.file, purpose=upload.purpose, expires_after_s=seconds)
    return Json(file_answer(record))


async def _take(part: Part, form: Form, upload: _Upload, service: RagService) -> None:
    if part.name == "file":
        if upload.file is not None:
            raise InvalidRequest("Expected one file; got several.", "file", "invalid_value")
        if part.filename is None:
            raise InvalidRequest("Expected 'file' to be a file with a name.", "file", "invalid_type")
        upload.file = await service.receive_file(part.filename, form.data())
    elif part.name == "purpose":
        upload.purpose = await form.text(part)
    elif part.name == "expires_after":
        upload.expires = _json_object(await form.text(part))
    elif part.name in ("expires_after[anchor]", "expires_after[seconds]"):
        member = part.name.removeprefix("expires_after[").removesuffix("]")
        upload.expires = {**(upload.expires or {}), member: await form.text(part)}


def _json_object(text: str) -> dict[str, object]:
    try:
        value = pydantic_core.from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise _bad_expiry("expires_after", "a JSON object") from error
    if not isinstance(value, dict):
        raise _bad_expiry("expires_after", "a JSON object")
    return value


def _expiry(expires: dict[str, object] | None) -> int | None:
    """Seconds from the upload; form fields are text, so digits count as a number."""
    if expires is None:
        return None
    if expires.get("anchor") != ANCHOR:
        raise _bad_expiry("expires_after.anchor", f"'{ANCHOR}'")
    seconds = expires.get("seconds")
    if isinstance(seconds, str) and seconds.isascii() and seconds.isdigit() and len(seconds) <= MAX_DIGITS:
        return int(seconds)
    if type(seconds) is int:
        return seconds
    raise _bad_expiry("expires_after.seconds", "a whole number")


def _bad_expiry(param: str, expected: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid '{param}': expected {expected}.", param, "invalid_value")


@router.get("", response_model=Listing[FileShape])
async def list_files(
    owner: Owner,
    service: Service,
    purpose: str | None = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    order: Literal["asc", "desc"] = "desc",
    after: str | None = None,
) -> Json:
    """The owner's uploads."""
    page = await service.list_files(owner, PageRequest(limit, order, after or None), purpose=purpose or None)
    return Json(page_answer(page, file_answer))


@router.get("/{file_id}", response_model=FileShape)
async def get_file(file_id: str, owner: Owner, service: Service) -> Json:
    """One upload."""
    return Json(file_answer(await service.get_file(owner, file_id)))


@router.delete("/{file_id}", response_model=Deleted)
async def delete_file(file_id: str, owner: Owner, service: Service) -> Json:
    """Remove an upload, from every store too."""
    await service.delete_file(owner, file_id)
    return deleted_answer(file_id, "file")


@router.get("/{file_id}/content", responses=CONTENT)
async def get_file_content(file_id: str, owner: Owner, service: Service) -> FileResponse:
    """The bytes as they were uploaded; never rendered by a browser on our behalf."""
    record, path = await service.file_content(owner, file_id)
    kind, _ = mimetypes.guess_type(record.filename)
    return FileResponse(
        path,
        media_type=kind or "application/octet-stream",
        filename=record.filename,
        headers={"X-Content-Type-Options": "nosniff"},
    )


def file_answer(record: FileRecord) -> dict[str, Any]:
    """OpenAI's object; `sha256` is an extension. A file that never expires has no `expires_at`."""
    answer = {
        "id": record.id,
        "object": "file",
        "bytes": record.bytes,
        "created_at": record.created_at,
        "filename": record.filename,
        "purpose": record.purpose,
        "status": "processed",
        "sha256": record.sha256,
    }
    return answer if record.expires_at is None else answer | {"expires_at": record.expires_at}
