"""Records, vectors and ingested files for tests of what is kept."""

from __future__ import annotations

import numpy as np

from rag.types import (
    Chunk,
    ChunkingStrategy,
    Embeddings,
    FileRecord,
    Float32,
    IngestedPart,
    IngestJob,
    ModelInfo,
    NewAttachment,
    SparseVector,
    VectorStoreRecord,
)
from storage.local import LocalStores

DIMENSION = 16
MODEL = ModelInfo("hash", "r1", DIMENSION, 128, has_sparse=True)
OWNER = "anna"
STORE = "vs_sea"


def file_record(
    file_id: str, *, owner: str = OWNER, created_at: int = 1_000, purpose: str = "assistants"
) -> FileRecord:
    return FileRecord(file_id, owner, f"{file_id}.txt", 10, purpose, created_at, "0" * 64)


def store_record(store_id: str = STORE, *, owner: str = OWNER, created_at: int = 1_000) -> VectorStoreRecord:
    return VectorStoreRecord(store_id, owner, "sea", created_at, created_at, MODEL)


def job(file_id: str, store_id: str = STORE, *, attempt: int = 1) -> IngestJob:
    return IngestJob(store_id, file_id, f"{file_id}.txt", ChunkingStrategy(), attempt)


def units(rng: np.random.Generator, count: int, dimension: int = DIMENSION) -> Float32:
    """Random unit vectors, float32 (count, dimension)."""
    vectors = rng.standard_normal((count, dimension), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def axis(number: int, dimension: int = DIMENSION) -> Float32:
    """The unit vector along one axis, float32 (1, dimension)."""
    return np.eye(dimension, dtype=np.float32)[number : number + 1]


def ingested(vectors: Float32, text: str = "text") -> IngestedPart:
    """One chunk per vector, with its own text."""
    count = len(vectors)
    chunks = tuple(
        Chunk(i, f"{text} {i} é", 3, 10 * i, 10 * i + 9, page=i + 1, page_last=i + 2, heading="Über" if i % 2 else None)
        for i in range(count)
    )
    sparse = tuple(SparseVector(np.array([1, 5], np.int32), np.array([0.5, 0.25], np.float32)) for _ in range(count))
    return IngestedPart(chunks, Embeddings(vectors, np.full(count, 3, np.int32), sparse), count)


def fill(
    stores: LocalStores,
    file_id: str,
    vectors: Float32,
    attributes: dict[str, str | bool | int | float] | None = None,
    *,
    store_id: str = STORE,
    text: str | None = None,
) -> None:
    """Upload, attach and ingest a file into a store that is there."""
    stores.create_file(file_record(file_id))
    stores.attach(OWNER, store_id, NewAttachment(file_id, attributes or {}))
    assert stores.keep(job(file_id, store_id), ingested(vectors, text or file_id))
