"""The seams. Each is awaited from an event loop and may be called by many callers at once.

Behind them stand a model or a database in this process, or a handle to one in another; the pipelines cannot tell.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from rag.filters import Filter
from rag.types import (
    Attachment,
    Attributes,
    Embeddings,
    FileBatch,
    FileRecord,
    FileStatus,
    Float32,
    Hit,
    IngestedPart,
    IngestJob,
    Kind,
    ModelInfo,
    NewAttachment,
    Page,
    PageRequest,
    Priority,
    Scores,
    StoredText,
    VectorStoreRecord,
)


class Embedder(Protocol):
    """Texts to vectors."""

    async def info(self) -> ModelInfo:
        """The model that is served."""
        ...

    async def embed(
        self,
        texts: Sequence[str],
        *,
        kind: Kind = Kind.PASSAGE,
        priority: Priority = Priority.INTERACTIVE,
        truncate: bool = False,
    ) -> Embeddings:
        """One row per text, in the order of the texts, whatever else was in the batch.

        Raises:
            InvalidRequest: a text is longer than the window and `truncate` is false; the message names the index.
            Overloaded: the queue is full.
            ModelFailed: the model raised or gave a vector that is not finite for one of these texts.
        """
        ...

    async def stats(self) -> Mapping[str, float]:
        """Counts and sizes by name, for metrics; of one replica where there are several."""
        ...


class Reranker(Protocol):
    """Query and passages to relevance."""

    async def info(self) -> ModelInfo:
        """The model that is served."""
        ...

    async def rerank(self, query: str, passages: Sequence[str], *, max_tokens_per_passage: int | None = None) -> Scores:
        """One score in [0, 1] per passage, in the order of the passages. The passage is cut where the pair is too long.

        Raises:
            InvalidRequest: the query alone fills the window.
            Overloaded, ModelFailed: as for `Embedder`.
        """
        ...

    async def stats(self) -> Mapping[str, float]:
        """Counts and sizes by name, for metrics; of one replica where there are several."""
        ...


class Ingestor(Protocol):
    """A stored file to embedded chunks. Holds no state: the same job may run twice."""

    def ingest(self, job: IngestJob) -> AsyncGenerator[IngestedPart, None]:
        """Read, cut and embed. The parts follow each other, from the first chunk that `job` does not keep to the last.

        Raises:
            UnsupportedFile: the file itself is at fault, or has no room; trying again will not help.
            Overloaded, StoreUnavailable, ModelFailed: a passing fault.
        """
        ...


class Blobs(Protocol):
    """Uploaded bytes under our own ids. A write is whole or absent."""

    async def write(self, file_id: str, stream: AsyncIterator[bytes], *, limit: int) -> tuple[int, str]:
        """Store the stream; gives its length in bytes and its SHA-256 in hex.

        Raises:
            TooLarge: more than `limit` bytes arrived; nothing is kept.
        """
        ...

    def path(self, file_id: str) -> Path:
        """Where the bytes lie; raises NotFound where there are none."""
        ...

    async def delete(self, file_id: str) -> None:
        """Remove the bytes; fine when there are none."""
        ...

    async def ids(self, *, min_age_s: float = 0.0) -> list[str]:
        """Of which uploads bytes lie here, and have lain for so many seconds."""
        ...


class VectorStores(Protocol):
    """Files, vector stores, their files and chunks: all that is kept. Every write is durable when it returns,
    atomic, and seen by the next read through any caller. `owner` sees only what is theirs; anything else is NotFound.
    """

    # files
    async def create_file(self, record: FileRecord) -> FileRecord: ...
    async def get_file(self, owner: str, file_id: str) -> FileRecord: ...
    async def list_files(self, owner: str, page: PageRequest, *, purpose: str | None = None) -> Page[FileRecord]: ...
    async def delete_file(self, owner: str, file_id: str) -> None:
        """Remove the record and detach the file from every store: out of every search when this returns."""
        ...

    # vector stores
    async def create_store(
        self, record: VectorStoreRecord, files: Sequence[NewAttachment] = (), *, wait_s: float = 0.0
    ) -> VectorStoreRecord:
        """Create and attach; an unknown file becomes a failed attachment. Waits up to `wait_s` for ingestion."""
        ...

    async def get_store(self, owner: str, store_id: str) -> VectorStoreRecord: ...
    async def list_stores(self, owner: str, page: PageRequest) -> Page[VectorStoreRecord]: ...
    async def update_store(self, owner: str, store_id: str, changes: Mapping[str, object]) -> VectorStoreRecord:
        """Change `name`, `metadata` or `expires_after_days`; a key that is absent stays as it is."""
        ...

    async def delete_store(self, owner: str, store_id: str) -> None: ...

    # files of a store
    async def attach(self, owner: str, store_id: str, new: NewAttachment, *, wait_s: float = 0.0) -> Attachment:
        """Attach and start ingestion; the existing attachment, unchanged, where there is one already.

        Waits up to `wait_s` seconds for a final state and answers whatever holds then.
        """
        ...

    async def get_attachment(self, owner: str, store_id: str, file_id: str) -> Attachment: ...
    async def list_attachments(
        self,
        owner: str,
        store_id: str,
        page: PageRequest,
        *,
        status: FileStatus | None = None,
        batch_id: str | None = None,
    ) -> Page[Attachment]: ...
    async def get_text(self, owner: str, store_id: str, file_id: str, *, with_vectors: bool = False) -> StoredText:
        """The chunks of an ingested file; none of one that is not."""
        ...

    async def set_attributes(self, owner: str, store_id: str, file_id: str, attributes: Attributes) -> Attachment: ...
    async def detach(self, owner: str, store_id: str, file_id: str) -> None: ...

    # batches of files
    async def create_batch(
        self, owner: str, batch: FileBatch, files: Sequence[NewAttachment], *, wait_s: float = 0.0
    ) -> FileBatch:
        """Attach the files, all or none; an unknown one becomes a failed attachment, one that is attached already is
        counted and stays as it is. Waits up to `wait_s` seconds for ingestion."""
        ...

    async def get_batch(self, owner: str, store_id: str, batch_id: str) -> FileBatch: ...
    async def cancel_batch(self, owner: str, store_id: str, batch_id: str) -> FileBatch:
        """Give up what is still in progress of what the batch attached; a batch that has ended stays as it is."""
        ...

    # search
    async def search(
        self,
        owner: str,
        store_id: str,
        queries: Float32,
        *,
        model: ModelInfo,
        limit: int,
        where: Filter | None = None,
    ) -> list[Hit]:
        """The best min(limit, matching) chunks for each row of `queries` (float32 (q, dimension)), merged:
        each chunk once, with the score (cosine, negative as 0) and index of the query that it matches best,
        best first, ties by chunk id. `where` is applied before the ranking. `model` embedded the queries.

        Raises:
            InvalidRequest: the store has expired.
            ModelMismatch: it was filled with another model.
        """
        ...

    async def stats(self) -> Mapping[str, float]:
        """Counts and sizes by name, for metrics; of one replica where there are several."""
        ...
