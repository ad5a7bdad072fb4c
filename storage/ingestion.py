"""Attachments on their way from attached to completed: jobs, the parts that are kept, failures.

Functions over a cursor: reading ones run on any thread's, writing ones only in a task of the write thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rag.types import ChunkingStrategy, FileError, FileStatus, IngestedPart, IngestJob
from storage import catalog
from storage.database import Cursor, first
from storage.generations import AttachedFile


def pending_jobs(cursor: Cursor) -> list[IngestJob]:
    """Whatever still has to be ingested, oldest first."""
    rows = cursor.execute(
        "select store_id, file_id, filename, max_chunk_size_tokens, chunk_overlap_tokens, attempts + 1, batch_id "
        "from attachments where status = 'in_progress' order by created_at, key"
    ).fetchall()
    return [
        IngestJob(store_id, file_id, filename, ChunkingStrategy(size, overlap), attempt, batch_id)
        for store_id, file_id, filename, size, overlap, attempt, batch_id in rows
    ]


@dataclass(frozen=True, slots=True)
class OpenAttachment:
    """An attachment that is being filled, and what of it is kept already."""

    key: int
    owner: str
    dimension: int
    plan: str | None
    chunk_count: int
    usage_bytes: int
    file: AttachedFile

    def continues_with(self, part: IngestedPart) -> bool:
        """Whether the part begins where the kept chunks end."""
        return part.is_first or (self.plan == part.plan and self.chunk_count == part.chunks[0].ordinal)


def open_attachment(cursor: Cursor, job: IngestJob) -> OpenAttachment | None:
    """The attachment that a job is to fill; None where there is none any more."""
    row = first(
        cursor,
        "select a.key, s.owner, s.dimension, a.plan, a.chunk_count, a.usage_bytes, "
        "a.store_id, a.file_id, a.filename, a.attributes "
        "from attachments a join vector_stores s on s.id = a.store_id "
        "where a.store_id = ? and a.file_id = ? and a.max_chunk_size_tokens = ? and a.chunk_overlap_tokens = ? "
        "and a.status = 'in_progress'",
        [job.store_id, job.file_id, job.chunking.max_chunk_size_tokens, job.chunking.chunk_overlap_tokens],
    )
    if row is None:
        return None
    key, owner, dimension, plan, chunk_count, usage_bytes, *file = row
    return OpenAttachment(key, owner, dimension, plan, chunk_count, usage_bytes, catalog.to_attached_file(file))


def count_part(cursor: Cursor, key: int, part: IngestedPart) -> None:
    """More chunks of it are kept; with the last it is ingested."""
    kept = 0 if part.is_first else 1
    cursor.execute(
        "update attachments set chunk_count = chunk_count * $kept + $chunks, "
        "token_count = token_count * $kept + $tokens, usage_bytes = usage_bytes * $kept + $bytes, "
        "status = $status, plan = $plan where key = $key",
        {
            "kept": kept,
            "chunks": len(part.chunks),
            "tokens": int(part.embeddings.token_counts.sum()),
            "bytes": part.usage_bytes,
            "status": (FileStatus.COMPLETED if part.is_last else FileStatus.IN_PROGRESS).value,
            "plan": None if part.is_last else part.plan,
            "key": key,
        },
    )


def room(cursor: Cursor, owner: str, limit: int, *, beside: int) -> int:
    """How many of `limit` bytes of text the owner's vector stores leave, one attachment not counted."""
    row = first(
        cursor,
        "select coalesce(sum(a.usage_bytes), 0)::bigint from attachments a join vector_stores s on s.id = a.store_id "
        "where s.owner = ? and a.key <> ?",
        [owner, beside],
    )
    return limit - (row[0] if row else 0)


def fail_attachment(cursor: Cursor, job: IngestJob, error: FileError) -> None:
    """Not ingested, for good; one that is in a final state already stays as it is."""
    found = open_attachment(cursor, job)
    if found is not None:
        give_up(cursor, [found.key], FileStatus.FAILED)
        cursor.execute(
            "update attachments set error_code = ?, error_message = ? where key = ?",
            [error.code.value, error.message, found.key],
        )


def give_up(cursor: Cursor, keys: Sequence[int], status: FileStatus) -> None:
    """Attachments that will not be ingested keep nothing."""
    chosen = "in (select unnest(?::bigint[]))"
    cursor.execute(
        "update attachments set status = ?, chunk_count = 0, token_count = 0, usage_bytes = 0, plan = null "
        f"where key {chosen}",
        [status.value, list(keys)],
    )
    cursor.execute(f"delete from chunks where attachment {chosen}", [list(keys)])


def count_attempt(cursor: Cursor, job: IngestJob) -> None:
    """One more attempt was made."""
    cursor.execute(
        "update attachments set attempts = greatest(attempts, ?) where store_id = ? and file_id = ?",
        [job.attempt, job.store_id, job.file_id],
    )


def reopen_incomplete(cursor: Cursor) -> int:
    """Ingest again whatever is called complete but has lost chunks; gives how many attachments that are."""
    rows = cursor.execute(
        "update attachments set status = 'in_progress', attempts = 0, chunk_count = 0, token_count = 0, "
        "usage_bytes = 0 "
        "where status = 'completed' and chunk_count <> "
        "(select count(*) from chunks where chunks.attachment = attachments.key) returning key"
    ).fetchall()
    for (key,) in rows:
        cursor.execute("delete from chunks where attachment = ?", [key])
    return len(rows)
