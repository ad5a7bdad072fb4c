"""Files, vector stores, attachments and attributes: rows to records and back.

Functions over a cursor: reading ones run on any thread's, writing ones only in a task of the write thread.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from rag.errors import InvalidRequest, NotFound
from rag.filters import Filter
from rag.types import (
    Attachment,
    Attributes,
    AttributeValue,
    ChunkingStrategy,
    ErrorCode,
    FileCounts,
    FileError,
    FileRecord,
    FileStatus,
    Int64,
    ModelInfo,
    NewAttachment,
    Page,
    PageRequest,
    VectorStoreRecord,
)
from storage import batches
from storage.database import Cursor, first
from storage.generations import AttachedFile
from storage.listing import Listing, Row
from storage.sql import compile_filter

T = TypeVar("T")

FILE_COLUMNS = ", ".join(column.name for column in dataclasses.fields(FileRecord))
STORE_COLUMNS = (
    "id, owner, name, created_at, last_active_at, description, metadata, expires_after_days, "
    "model_id, model_revision, dimension, max_tokens, has_sparse, device, dtype, engine"
)
PARTS = ("chunks", "attributes", "batch_files")  # what goes with an attachment
ATTACHMENT_COLUMNS = (
    "store_id, file_id, status, created_at, max_chunk_size_tokens, chunk_overlap_tokens, attributes, usage_bytes, "
    "error_code, error_message, chunk_count, token_count, filename"
)


# --- files ----------------------------------------------------------------------------------------------------------


def insert_file(cursor: Cursor, record: FileRecord) -> None:
    """A new file."""
    cursor.execute(
        f"insert into files ({FILE_COLUMNS}) values (?, ?, ?, ?, ?, ?, ?, ?)",
        list(dataclasses.astuple(record)),
    )


def get_file(cursor: Cursor, owner: str, file_id: str) -> FileRecord:
    """Raises NotFound where there is none, or it is somebody else's."""
    row = first(
        cursor,
        f"select {FILE_COLUMNS} from files where id = ? and owner = ?",
        [file_id, owner],
    )
    if row is None:
        raise NotFound(f"No such File object: {file_id}", "id")
    return FileRecord(*row)


def list_files(cursor: Cursor, owner: str, request: PageRequest, purpose: str | None) -> Page[FileRecord]:
    """Those of one owner, perhaps of one purpose."""
    listing = Listing("files", FILE_COLUMNS, "id", "owner = ?", (owner,), lambda row: FileRecord(*row))
    return listing.page(cursor, request, "purpose", purpose)


def delete_file(cursor: Cursor, owner: str, file_id: str) -> list[tuple[str, int]]:
    """Remove the record and every attachment of it; gives (store, key) of each attachment."""
    get_file(cursor, owner, file_id)
    attached = cursor.execute("select store_id, key from attachments where file_id = ?", [file_id]).fetchall()
    for _, key in attached:
        delete_attachment(cursor, key)
    cursor.execute("delete from files where id = ?", [file_id])
    return attached


def purge_uploads(cursor: Cursor, now: int) -> list[str]:
    """Remove the records of uploads that have expired, but for those that are being ingested; gives their ids."""
    rows = cursor.execute(
        "delete from files where expires_at <= ? and not exists (select 1 from attachments a "
        "where a.file_id = files.id and a.status = 'in_progress') returning id",
        [now],
    ).fetchall()
    return [ident for (ident,) in rows]


def unknown_files(cursor: Cursor, file_ids: Sequence[str]) -> list[str]:
    """Those ids that no upload has."""
    rows = cursor.execute(
        "select id from (select unnest(?::varchar[]) id) where id not in (select id from files)", [list(file_ids)]
    ).fetchall()
    return [ident for (ident,) in rows]


# --- vector stores --------------------------------------------------------------------------------------------------


def insert_store(cursor: Cursor, record: VectorStoreRecord) -> None:
    """A new vector store, stamped with its model."""
    model = record.model
    values = [
        *(record.id, record.owner, record.name, record.created_at, record.last_active_at, record.description),
        *(_to_json(record.metadata), record.expires_after_days),
        *(model.id, model.revision, model.dimension, model.max_tokens, model.has_sparse),
        *(model.device, model.dtype, model.engine),
    ]
    marks = ", ".join("?" * len(values))
    cursor.execute(f"insert into vector_stores ({STORE_COLUMNS}) values ({marks})", values)


def get_store(cursor: Cursor, owner: str, store_id: str) -> VectorStoreRecord:
    """Raises NotFound where there is none, or it is somebody else's."""
    return _with_counts(cursor, [get_uncounted_store(cursor, owner, store_id)])[0]


def get_uncounted_store(cursor: Cursor, owner: str, store_id: str) -> VectorStoreRecord:
    """The same without counting its files, which costs more the more it has; raises NotFound likewise."""
    row = first(
        cursor,
        f"select {STORE_COLUMNS} from vector_stores where id = ? and owner = ?",
        [store_id, owner],
    )
    if row is None:
        raise NotFound(f"No such vector store: {store_id}", "id")
    return _store(row)


def check_store(cursor: Cursor, owner: str, store_id: str) -> None:
    """Raises NotFound where there is none, or it is somebody else's."""
    found = first(cursor, "select 1 from vector_stores where id = ? and owner = ?", [store_id, owner])
    if found is None:
        raise NotFound(f"No such vector store: {store_id}", "id")


def store_ids(cursor: Cursor) -> list[tuple[str, str]]:
    """Owner and id of every store."""
    return cursor.execute("select owner, id from vector_stores order by id").fetchall()


def list_stores(cursor: Cursor, owner: str, request: PageRequest) -> Page[VectorStoreRecord]:
    """Those of one owner."""
    page = Listing("vector_stores", STORE_COLUMNS, "id", "owner = ?", (owner,), _store).page(cursor, request)
    return replace(page, items=tuple(_with_counts(cursor, page.items)))


def update_store(cursor: Cursor, store_id: str, changes: Mapping[str, object]) -> None:
    """Set `name`, `metadata` or `expires_after_days`, as far as they are there."""
    known = {"name", "metadata", "expires_after_days"}
    if not known.issuperset(changes):
        unknown = sorted(set(changes) - known)
        raise InvalidRequest(f"A vector store's {', '.join(unknown)} cannot be changed.", unknown[0])
    for name, value in changes.items():
        stored = _to_json(value) if name == "metadata" else value
        cursor.execute(f"update vector_stores set {name} = ? where id = ?", [stored, store_id])


def touch_store(cursor: Cursor, store_id: str, when: int) -> None:
    """Move `last_active_at`, never back."""
    cursor.execute(
        "update vector_stores set last_active_at = greatest(last_active_at, ?) where id = ?", [when, store_id]
    )


def purge_expired(cursor: Cursor, now: int) -> list[str]:
    """Delete the chunks of stores that have expired, and keep the rest of them; gives the stores that had any."""
    rows = cursor.execute(
        "update attachments set chunk_count = 0, token_count = 0, usage_bytes = 0 "
        "where chunk_count > 0 and store_id in "
        "(select id from vector_stores where last_active_at + expires_after_days * 86400 <= ?) returning key, store_id",
        [now],
    ).fetchall()
    for key, _ in rows:
        cursor.execute("delete from chunks where attachment = ?", [key])
    return sorted({store_id for _, store_id in rows})


def delete_store(cursor: Cursor, owner: str, store_id: str) -> None:
    """Remove the store, its attachments and their chunks."""
    check_store(cursor, owner, store_id)
    keys = "select key from attachments where store_id = ?"
    for part in PARTS:
        cursor.execute(f"delete from {part} where attachment in ({keys})", [store_id])
    for table in ("attachments", "batches"):
        cursor.execute(f"delete from {table} where store_id = ?", [store_id])
    cursor.execute("delete from vector_stores where id = ?", [store_id])


def _store(row: Row) -> VectorStoreRecord:
    ident, owner, name, created_at, last_active_at, description, metadata, days, *model = row
    return VectorStoreRecord(
        *(ident, owner, name, created_at, last_active_at, ModelInfo(*model)),
        description=description,
        metadata=None if metadata is None else json.loads(metadata),
        expires_after_days=days,
    )


def _with_counts(cursor: Cursor, records: Sequence[VectorStoreRecord]) -> list[VectorStoreRecord]:
    if not records:
        return []
    marks = ", ".join("?" * len(records))
    rows = cursor.execute(
        "select store_id, status, count(*), sum(usage_bytes)::bigint from attachments "
        f"where store_id in ({marks}) group by store_id, status",
        [record.id for record in records],
    ).fetchall()
    counts: dict[str, dict[str, int]] = {record.id: {} for record in records}
    usage = dict.fromkeys(counts, 0)
    for store_id, status, count, size in rows:
        counts[store_id][status] = count
        usage[store_id] += size
    return [
        replace(record, file_counts=FileCounts(**counts[record.id]), usage_bytes=usage[record.id]) for record in records
    ]


# --- attachments ----------------------------------------------------------------------------------------------------


def insert_attachments(
    cursor: Cursor,
    store_id: str,
    files: Sequence[NewAttachment],
    filenames: Mapping[str, str],
    when: int,
    batch_id: str | None = None,
) -> list[int]:
    """New attachments, waiting to be ingested, or failed where `filenames` does not know the file; gives their keys."""
    numbers = "select nextval('attachment_keys') from range(?)"
    keys = [key for (key,) in cursor.execute(numbers, [len(files)]).fetchall()]
    with cursor.appender("attachments") as appender:
        for key, new in zip(keys, files, strict=True):
            filename = filenames.get(new.file_id)
            status = FileStatus.FAILED if filename is None else FileStatus.IN_PROGRESS
            error = _no_such_file(new.file_id) if filename is None else None
            appender.append_row(
                *(key, store_id, new.file_id, filename or "", status.value, when),
                *(new.chunking.max_chunk_size_tokens, new.chunking.chunk_overlap_tokens, _to_json(new.attributes)),
                *(0, 0, 0),
                *((None, None) if error is None else (error.code.value, error.message)),
                *(0, batch_id, None),
            )
    if any(new.attributes for new in files):
        with cursor.appender("attributes") as appender:
            for key, new in zip(keys, files, strict=True):
                for name, value in new.attributes.items():
                    appender.append_row(key, name, *_columns(value))
    return keys


def filenames(cursor: Cursor, owner: str, file_ids: Sequence[str]) -> dict[str, str]:
    """The names of those of the files that the owner has, by id."""
    rows = cursor.execute(
        "select id, filename from files where owner = ? and id in (select unnest(?::varchar[]))",
        [owner, list(file_ids)],
    ).fetchall()
    return dict(rows)


def attachment_keys(cursor: Cursor, store_id: str, file_ids: Sequence[str]) -> dict[str, int]:
    """The keys of those of the files that are attached, by file id."""
    rows = cursor.execute(
        "select file_id, key from attachments where store_id = ? and file_id in (select unnest(?::varchar[]))",
        [store_id, list(file_ids)],
    ).fetchall()
    return dict(rows)


def _no_such_file(file_id: str) -> FileError:
    return FileError(ErrorCode.INVALID_FILE, f"No such File object: {file_id}")


def find_attachment(cursor: Cursor, store_id: str, file_id: str) -> Attachment | None:
    """The attachment, or None."""
    row = first(
        cursor,
        f"select {ATTACHMENT_COLUMNS} from attachments where store_id = ? and file_id = ?",
        [store_id, file_id],
    )
    return None if row is None else _attachment(row)


def get_attachment(cursor: Cursor, owner: str, store_id: str, file_id: str) -> Attachment:
    """Raises NotFound for the store or for the file within it."""
    check_store(cursor, owner, store_id)
    found = find_attachment(cursor, store_id, file_id)
    if found is None:
        raise NotFound(f"No such File object: {file_id} in vector store {store_id}", "id")
    return found


def list_attachments(
    cursor: Cursor,
    owner: str,
    store_id: str,
    request: PageRequest,
    status: FileStatus | None,
    batch_id: str | None = None,
) -> Page[Attachment]:
    """Those of one store, perhaps of one status or of one batch."""
    check_store(cursor, owner, store_id)
    scope, values = "store_id = ?", [store_id]
    if batch_id is not None:
        scope, values = f"{scope} and {batches.MEMBERS}", [store_id, batch_id]
    listing = Listing("attachments", ATTACHMENT_COLUMNS, "file_id", scope, tuple(values), _attachment)
    return listing.page(cursor, request, "status", None if status is None else status.value)


def delete_attachment(cursor: Cursor, key: int) -> None:
    """Remove it with its chunks."""
    for table, column in (*((part, "attachment") for part in PARTS), ("attachments", "key")):
        cursor.execute(f"delete from {table} where {column} = ?", [key])


def set_attributes(cursor: Cursor, key: int, attributes: Attributes) -> None:
    """Replace the whole map."""
    cursor.execute("update attachments set attributes = ? where key = ?", [_to_json(attributes), key])
    cursor.execute("delete from attributes where attachment = ?", [key])
    _insert_attributes(cursor, key, attributes)


def matching(cursor: Cursor, store_id: str, where: Filter) -> Int64:
    """The keys of the store's ingested attachments that pass, int64 (n,)."""
    condition, parameters = compile_filter(where)
    found = cursor.execute(
        "select a.key from attachments a left join attributes t on t.attachment = a.key "
        f"where a.store_id = $store and a.status = 'completed' group by a.key having {condition}",
        {"store": store_id, **parameters},
    ).fetchnumpy()
    return np.asarray(found["key"], np.int64)


def ingested_files(cursor: Cursor, store_id: str) -> dict[int, AttachedFile]:
    """Those of the store, by key."""
    rows = cursor.execute(
        "select key, store_id, file_id, filename, attributes from attachments "
        "where store_id = ? and status = 'completed'",
        [store_id],
    ).fetchall()
    return {key: to_attached_file(rest) for key, *rest in rows}


def attached_file(cursor: Cursor, key: int) -> AttachedFile:
    """The one with this key, which must be there."""
    rows = cursor.execute(
        "select store_id, file_id, filename, attributes from attachments where key = ?", [key]
    ).fetchall()
    return to_attached_file(rows[0])


def to_attached_file(row: Sequence[Any]) -> AttachedFile:
    """From store, file, filename and attributes."""
    store_id, file_id, filename, attributes = row
    return AttachedFile(store_id, file_id, filename, json.loads(attributes))


def _attachment(row: Row) -> Attachment:
    store_id, file_id, status, created_at, size, overlap, attributes, usage_bytes, code, message, *rest = row
    chunks, tokens, filename = rest
    return Attachment(
        *(store_id, file_id, FileStatus(status), created_at, ChunkingStrategy(size, overlap), json.loads(attributes)),
        usage_bytes=usage_bytes,
        last_error=None if code is None else FileError(ErrorCode(code), message),
        chunk_count=chunks,
        token_count=tokens,
        filename=filename,
    )


def _insert_attributes(cursor: Cursor, key: int, attributes: Attributes) -> None:
    for name, value in attributes.items():
        cursor.execute("insert into attributes values (?, ?, ?, ?, ?)", [key, name, *_columns(value)])


def _columns(value: AttributeValue) -> tuple[str | None, float | None, bool | None]:
    if isinstance(value, bool):
        return None, None, value
    return (value, None, None) if isinstance(value, str) else (None, float(value), None)


# --- numbers ----------------------------------------------------------------------------------------------------------


def counts(cursor: Cursor) -> dict[str, float]:
    """How many rows there are of every kind."""
    row = cursor.execute(
        "select (select count(*) from files), (select count(*) from vector_stores), (select count(*) from chunks), "
        "(select count(*) from attachments), (select count(*) from attachments where status = 'in_progress')"
    ).fetchall()[0]
    return dict(zip(("files", "vector_stores", "chunks", "attachments", "pending"), map(float, row), strict=True))


def _to_json(value: object) -> str | None:
    return None if value is None else json.dumps(dict(value) if isinstance(value, Mapping) else value)
