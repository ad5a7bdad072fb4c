"""Vectors of another model for chunks that are there: collected beside the old ones, then put in their place at once.

Functions over a cursor: reading ones run on any thread's, writing ones only in a task of the write thread.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rag.types import Embeddings, ModelInfo
from storage.chunks import sparse_bytes
from storage.database import Cursor, first

WHOSE = "attachment in (select key from attachments where store_id = ? and status = 'completed')"


def missing(cursor: Cursor, store_id: str, model: ModelInfo, limit: int) -> list[tuple[int, str]]:
    """Id and text of chunks of the store that have no vector of the model yet, by id; none when all have."""
    return cursor.execute(
        f"select id, text from chunks where {WHOSE} and id not in (select chunk from reembedded where model = ?) "
        "order by id limit ?",
        [store_id, _name(model), limit],
    ).fetchall()


def count_missing(cursor: Cursor, store_id: str, model: ModelInfo) -> int:
    """How many those are in all."""
    sql = f"select count(*) from chunks where {WHOSE} and id not in (select chunk from reembedded where model = ?)"
    (count,) = first(cursor, sql, [store_id, _name(model)]) or (0,)
    return int(count)


def insert(cursor: Cursor, model: ModelInfo, ids: Sequence[int], embeddings: Embeddings) -> None:
    """The vectors of those chunks."""
    vectors = embeddings.dense.astype(np.float16)
    sparse = embeddings.sparse or (None,) * len(ids)
    with cursor.appender("reembedded") as appender:
        appender.append_rows(
            (ident, _name(model), vector.tobytes(), sparse_bytes(weights))
            for ident, vector, weights in zip(ids, vectors, sparse, strict=True)
        )


def swap(cursor: Cursor, store_id: str, model: ModelInfo) -> None:
    """Put the vectors of the model in the place of the old ones and stamp the store with it. A file that is being
    ingested begins anew."""
    cursor.execute(
        f"update chunks set vector = r.vector, sparse = r.sparse from reembedded r where r.chunk = chunks.id "
        f"and r.model = ? and {WHOSE}",
        [_name(model), store_id],
    )
    cursor.execute(
        "update vector_stores set model_id = ?, model_revision = ?, dimension = ?, max_tokens = ?, has_sparse = ?, "
        "device = ?, dtype = ?, engine = ? where id = ?",
        [
            *(model.id, model.revision, model.dimension, model.max_tokens, model.has_sparse),
            *(model.device, model.dtype, model.engine, store_id),
        ],
    )
    unfinished = "select key from attachments where store_id = ? and status = 'in_progress'"
    cursor.execute(f"delete from chunks where attachment in ({unfinished})", [store_id])
    cursor.execute(
        "update attachments set plan = null, chunk_count = 0, token_count = 0, usage_bytes = 0 "
        "where store_id = ? and status = 'in_progress'",
        [store_id],
    )
    cursor.execute(f"delete from reembedded where chunk in (select id from chunks where {WHOSE})", [store_id])


def _name(model: ModelInfo) -> str:
    return f"{model.id} {model.revision} {model.dimension}"
