"""The chunks of attachments with their vectors, as rows.

Functions over a cursor: reading ones run on any thread's, writing ones only in a task of the write thread.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rag.types import Chunk, IngestedFile, Int64, SparseVector
from storage.database import Cursor
from storage.dense import Float16
from storage.generations import Rows


def delete(cursor: Cursor, attachment: int) -> None:
    """Every chunk of the attachment."""
    cursor.execute("delete from chunks where attachment = ?", [attachment])


def insert(cursor: Cursor, attachment: int, file: IngestedFile, vectors: Float16) -> Int64:
    """All chunks of the attachment; `vectors` is float16 (n, dimension). Gives their ids, int64 (n,), ascending."""
    count = len(file.chunks)
    ids = [row[0] for row in cursor.execute("select nextval('chunk_ids') from range(?)", [count]).fetchall()]
    sparse = file.embeddings.sparse or (None,) * count
    with cursor.appender("chunks") as appender:
        appender.append_rows(
            (
                *(ident, attachment, chunk.ordinal, chunk.text, chunk.token_count, chunk.start, chunk.end),
                *(chunk.page, chunk.page_last, chunk.heading, vector.tobytes(), _to_bytes(weights)),
            )
            for ident, chunk, vector, weights in zip(ids, file.chunks, vectors, sparse, strict=True)
        )
    return np.array(ids, np.int64)


def fetch(cursor: Cursor, ids: Sequence[int]) -> dict[int, tuple[int, Chunk]]:
    """Attachment and chunk by id; those that are gone are missing."""
    marks = ", ".join("?" * len(ids))
    rows = cursor.execute(
        "select id, attachment, ordinal, text, token_count, start_char, end_char, page, page_last, heading "
        f"from chunks where id in ({marks})",
        list(ids),
    ).fetchall()
    return {ident: (attachment, Chunk(*rest)) for ident, attachment, *rest in rows}


def load(cursor: Cursor, store_id: str, dimension: int) -> Rows:
    """Every chunk of a vector store, by id."""
    found = cursor.execute(
        "select id, attachment, vector from chunks "
        "where attachment in (select key from attachments where store_id = ?) order by id",
        [store_id],
    ).fetchnumpy()
    vectors = np.frombuffer(b"".join(found["vector"]), np.float16).reshape(-1, dimension)
    return Rows(np.asarray(found["id"], np.int64), np.asarray(found["attachment"], np.int64), vectors)


def _to_bytes(weights: SparseVector | None) -> bytes | None:
    return None if weights is None else weights.indices.tobytes() + weights.values.tobytes()
