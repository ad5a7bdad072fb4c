"""What exists on one side only: rows against rows, and rows against what is derived from them."""

from __future__ import annotations

from collections.abc import Iterable

from rag.types import Int64
from storage.database import Cursor

# Each gives a sentence for everything that is wrong.
CHECKS = (
    """select 'file ' || file_id || ' is attached to vector store ' || store_id || ', which is not there'
    from attachments where store_id not in (select id from vector_stores)""",
    """select count(*) || ' chunks belong to attachment ' || attachment || ', which is not there'
    from chunks where attachment not in (select key from attachments) group by attachment""",
    """select count(*) || ' attributes belong to attachment ' || attachment || ', which is not there'
    from attributes where attachment not in (select key from attachments) group by attachment""",
    """select 'batch ' || id || ' belongs to vector store ' || store_id || ', which is not there'
    from batches where store_id not in (select id from vector_stores)""",
    """select 'batch ' || batch_id || ' has attachment ' || attachment || ', and one of the two is not there'
    from batch_files where batch_id not in (select id from batches) or attachment not in (select key from attachments)
    """,
    """select 'file ' || a.file_id || ' in vector store ' || a.store_id || ' says ' || a.chunk_count || ' chunks of '
    || a.usage_bytes || ' bytes, and has ' || coalesce(c.count, 0) || ' of ' || coalesce(c.size, 0)
    from attachments a left join (
        select attachment, count(*) as count, sum(strlen(text))::bigint as size from chunks group by attachment
    ) c on c.attachment = a.key
    where a.chunk_count <> coalesce(c.count, 0) or a.usage_bytes <> coalesce(c.size, 0)""",
    """select 'file ' || file_id || ' in vector store ' || store_id || ' is completed without a chunk'
    from attachments where status = 'completed' and chunk_count = 0
    and store_id not in (select id from vector_stores where last_active_at + expires_after_days * 86400 <= $now)""",
    """select 'attachment ' || attachment || ' has chunks twice, or lacks some: ' || count(*) || ' of '
    || max(ordinal) + 1 from chunks group by attachment
    having count(*) <> max(ordinal) + 1 or count(distinct ordinal) <> count(*)""",
    """select count(*) || ' vectors in vector store ' || s.id || ' have not ' || s.dimension || ' dimensions'
    from chunks c join attachments a on a.key = c.attachment join vector_stores s on s.id = a.store_id
    where octet_length(c.vector) <> 2 * s.dimension group by s.id, s.dimension""",
)


def check_rows(cursor: Cursor, now: int) -> list[str]:
    """A sentence for every contradiction between rows; `now` in Unix seconds."""
    found: list[str] = []
    for sql in CHECKS:
        parameters = {"now": now} if "$now" in sql else {}
        found += [sentence for (sentence,) in cursor.execute(sql, parameters).fetchall()]
    return found


def check_index(cursor: Cursor, store_id: str, indexed: Int64) -> list[str]:
    """Compare the chunks that searches of a store can find, by id, with those of its ingested files."""
    rows = cursor.execute(
        "select c.id from chunks c join attachments a on a.key = c.attachment "
        "where a.store_id = ? and a.status = 'completed'",
        [store_id],
    ).fetchall()
    kept = {ident for (ident,) in rows}
    found = set(indexed.tolist())
    return [
        f"vector store {store_id}: {len(ids)} chunks are {where}"
        for ids, where in ((kept - found, "kept but not found"), (found - kept, "found but not kept"))
        if ids
    ]


def check_blobs(cursor: Cursor, lying: Iterable[str]) -> list[str]:
    """Compare the uploads with the bytes that lie there, by id."""
    known = {ident for (ident,) in cursor.execute("select id from files").fetchall()}
    there = set(lying)
    return [f"file {ident} has lost its bytes" for ident in sorted(known - there)] + [
        f"bytes of {ident} belong to no upload" for ident in sorted(there - known)
    ]
