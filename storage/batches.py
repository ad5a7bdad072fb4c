"""File batches as rows: which attachments belong to one; what became of them is in the attachments.

Functions over a cursor: reading ones run on any thread's, writing ones only in a task of the write thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from rag.errors import NotFound
from rag.types import FileBatch, FileCounts
from storage.database import Cursor, first

MEMBERS = "key in (select attachment from batch_files where batch_id = ?)"
"""True of the attachments of a batch."""


def insert(cursor: Cursor, batch: FileBatch, attachments: Sequence[int]) -> None:
    """A new batch with its files."""
    cursor.execute("insert into batches values (?, ?, ?, false)", [batch.id, batch.store_id, batch.created_at])
    with cursor.appender("batch_files") as appender:
        appender.append_rows((batch.id, attachment) for attachment in attachments)


def get(cursor: Cursor, store_id: str, batch_id: str) -> FileBatch:
    """Raises NotFound where the store has no such batch."""
    row = first(cursor, "select created_at, cancelled from batches where id = ? and store_id = ?", [batch_id, store_id])
    if row is None:
        raise NotFound(f"No such file batch: {batch_id} in vector store {store_id}", "batch_id")
    counts = cursor.execute(
        f"select status, count(*) from attachments where {MEMBERS} group by status", [batch_id]
    ).fetchall()
    created_at, cancelled = row
    return FileBatch(batch_id, store_id, created_at, cancelled, FileCounts(**dict(counts)))


def cancel(cursor: Cursor, batch_id: str) -> list[int]:
    """Mark it, unless it has ended; gives the attachments that it made and that are still in progress."""
    unfinished = [
        key
        for (key,) in cursor.execute(
            "select key from attachments where batch_id = ? and status = 'in_progress'", [batch_id]
        ).fetchall()
    ]
    if unfinished:
        cursor.execute("update batches set cancelled = true where id = ?", [batch_id])
    return unfinished


def purge(cursor: Cursor, before: int) -> int:
    """Forget ended batches that were created before that time, not their files; gives how many."""
    old = (
        "select id from batches where created_at < ? and not exists (select 1 from attachments a join batch_files f "
        "on f.attachment = a.key where f.batch_id = batches.id and a.status = 'in_progress')"
    )
    found = [ident for (ident,) in cursor.execute(old, [before]).fetchall()]
    for table, column in (("batch_files", "batch_id"), ("batches", "id")):
        cursor.execute(f"delete from {table} where {column} in (select unnest(?::varchar[]))", [found])
    return len(found)
