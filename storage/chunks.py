"""The chunks of attachments with their vectors, as rows.

Functions over a cursor: reading ones run on any thread's, writing ones only in a task of the write thread.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rag.types import Chunk, IngestedPart, SparseVector, StoredText
from storage.database import Cursor
from storage.dense import Float16
from storage.generations import Rows


def delete(cursor: Cursor, attachment: int) -> None:
    """Every chunk of the attachment."""
    cursor.execute("delete from chunks where attachment = ?", [attachment])


def insert(cursor: Cursor, attachment: int, part: IngestedPart, vectors: Float16) -> Rows:
    """More chunks of the attachment; `vectors` is float16 (n, dimension)."""
    count = len(part.chunks)
    ids = [row[0] for row in cursor.execute("select nextval('chunk_ids') from range(?)", [count]).fetchall()]
    sparse = part.embeddings.sparse or (None,) * count
    with cursor.appender("chunks") as appender:
        appender.append_rows(
            (
                *(ident, attachment, chunk.ordinal, chunk.text, chunk.token_count, chunk.start, chunk.end),
                *(chunk.page, chunk.page_last, chunk.heading, vector.tobytes(), sparse_bytes(weights)),
            )
            for ident, chunk, vector, weights in zip(ids, part.chunks, vectors, sparse, strict=True)
        )
    return Rows(np.array(ids, np.int64), np.full(count, attachment, np.int64), vectors)


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
    """Every chunk of a vector store's ingested files, by id."""
    whose = "in (select key from attachments where store_id = ? and status = 'completed')"
    return _rows(cursor, whose, store_id, dimension)


def load_attachment(cursor: Cursor, attachment: int, dimension: int) -> Rows:
    """Every chunk of an attachment, by id."""
    return _rows(cursor, "= ?", attachment, dimension)


def text(cursor: Cursor, attachment: int, *, with_vectors: bool) -> StoredText:
    """The chunks of an attachment in order; with their vectors where asked for."""
    rows = cursor.execute(
        "select ordinal, text, token_count, start_char, end_char, page, page_last, heading, "
        f"{'vector' if with_vectors else 'null'} from chunks where attachment = ? order by ordinal",
        [attachment],
    ).fetchall()
    vectors = None
    if with_vectors:
        halves = [np.frombuffer(row[-1], np.float16) for row in rows]
        vectors = np.array(halves, np.float32).reshape(len(rows), -1 if rows else 0)
    return StoredText(tuple(Chunk(*row[:-1]) for row in rows), vectors)


def _rows(cursor: Cursor, whose: str, value: object, dimension: int) -> Rows:
    found = cursor.execute(
        f"select id, attachment, vector from chunks where attachment {whose} order by id", [value]
    ).fetchnumpy()
    vectors = np.frombuffer(b"".join(found["vector"]), np.float16).reshape(-1, dimension)
    return Rows(np.asarray(found["id"], np.int64), np.asarray(found["attachment"], np.int64), vectors)


def sparse_bytes(weights: SparseVector | None) -> bytes | None:
    """Lexical weights as they are kept."""
    return None if weights is None else weights.indices.tobytes() + weights.values.tobytes()
