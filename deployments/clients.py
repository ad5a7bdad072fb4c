"""The protocols over handles: the only place that knows how Ray reports what went wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from typing import Any, TypeVar

from ray.exceptions import RayActorError, RayError, RayTaskError, TaskCancelledError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RayServeException
from ray.serve.handle import DeploymentHandle

from deployments.calls import EmbedCall, SearchCall
from deployments.coalescing import Coalescer
from rag.errors import Overloaded, RagError, StoreUnavailable
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

R = TypeVar("R")


def translate(error: BaseException, what: str) -> BaseException:
    """Ray's report of a failed call in our own terms; cancellation stays what it is."""
    if isinstance(error, RayTaskError):
        cause = error.cause
        return translate(cause, what) if isinstance(cause, BaseException) and cause is not error else error
    if isinstance(error, RagError | asyncio.CancelledError):
        return error
    if isinstance(error, TaskCancelledError):
        return asyncio.CancelledError()
    if isinstance(error, BackPressureError):
        return Overloaded(f"The {what} has too much waiting; try again.")
    if isinstance(error, RayActorError | DeploymentUnavailableError | RayServeException | TimeoutError):
        return StoreUnavailable(f"The {what} is restarting; try again.", 2)
    if isinstance(error, RayError):
        return StoreUnavailable(f"The {what} cannot be reached; try again.", 2)
    return error


async def call(response: Awaitable[R], what: str) -> R:
    """Await a handle's answer."""
    try:
        return await response
    except (RayError, RayServeException, BackPressureError, TimeoutError) as error:
        raise translate(error, what) from None


class RemoteEmbedder:
    """`rag.protocols.Embedder` over a deployment."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle
        self._info: ModelInfo | None = None  # asked once: a new model comes with new replicas of everything
        self._calls: Coalescer[EmbedCall, Embeddings] = Coalescer(self._send)

    async def info(self) -> ModelInfo:
        if self._info is None:
            self._info = await call(self._handle.info.remote(), "embedder")
        assert self._info is not None
        return self._info

    async def embed(
        self,
        texts: Sequence[str],
        *,
        kind: Kind = Kind.PASSAGE,
        priority: Priority = Priority.INTERACTIVE,
        truncate: bool = False,
    ) -> Embeddings:
        request = EmbedCall(tuple(texts), kind, priority, truncate)
        return await self._calls.call(request, weight=len(texts))

    async def _send(self, calls: Sequence[EmbedCall]) -> Sequence[Embeddings | BaseException]:
        return await call(self._handle.embed_all.remote(calls), "embedder")

    async def stats(self) -> Mapping[str, float]:
        return await call(self._handle.stats.remote(), "embedder")


class RemoteReranker:
    """`rag.protocols.Reranker` over a deployment."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle
        self._info: ModelInfo | None = None

    async def info(self) -> ModelInfo:
        if self._info is None:
            self._info = await call(self._handle.info.remote(), "reranker")
        assert self._info is not None
        return self._info

    async def rerank(self, query: str, passages: Sequence[str], *, max_tokens_per_passage: int | None = None) -> Scores:
        return await call(
            self._handle.rerank.remote(query, list(passages), max_tokens_per_passage=max_tokens_per_passage), "reranker"
        )

    async def stats(self) -> Mapping[str, float]:
        return await call(self._handle.stats.remote(), "reranker")


class RemoteIngestor:
    """`rag.protocols.Ingestor` over a deployment."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle

    async def ingest(self, job: IngestJob) -> AsyncGenerator[IngestedPart, None]:
        answers: Any = self._handle.options(stream=True).ingest.remote(job)
        try:
            while True:
                try:
                    part = await call(anext(answers), "ingestor")
                except StopAsyncIteration:
                    return
                yield part
        finally:
            answers.cancel()  # nothing where it has ended


class RemoteStores:
    """`rag.protocols.VectorStores` over the deployment that owns the data."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle
        self._searches: Coalescer[SearchCall, list[Hit]] = Coalescer(self._send)

    async def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return await call(getattr(self._handle, method).remote(*args, **kwargs), "vector store")

    async def _send(self, calls: Sequence[SearchCall]) -> Sequence[list[Hit] | BaseException]:
        return await call(self._handle.search_all.remote(calls), "vector store")

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
        return await self._searches.call(SearchCall(owner, store_id, queries, model, limit, where))

    async def create_file(self, record: FileRecord) -> FileRecord:
        return await self._call("create_file", record)

    async def get_file(self, owner: str, file_id: str) -> FileRecord:
        return await self._call("get_file", owner, file_id)

    async def list_files(self, owner: str, page: PageRequest, *, purpose: str | None = None) -> Page[FileRecord]:
        return await self._call("list_files", owner, page, purpose=purpose)

    async def delete_file(self, owner: str, file_id: str) -> None:
        await self._call("delete_file", owner, file_id)

    async def create_store(
        self, record: VectorStoreRecord, files: Sequence[NewAttachment] = (), *, wait_s: float = 0.0
    ) -> VectorStoreRecord:
        return await self._call("create_store", record, tuple(files), wait_s=wait_s)

    async def get_store(self, owner: str, store_id: str) -> VectorStoreRecord:
        return await self._call("get_store", owner, store_id)

    async def list_stores(self, owner: str, page: PageRequest) -> Page[VectorStoreRecord]:
        return await self._call("list_stores", owner, page)

    async def update_store(self, owner: str, store_id: str, changes: Mapping[str, object]) -> VectorStoreRecord:
        return await self._call("update_store", owner, store_id, dict(changes))

    async def delete_store(self, owner: str, store_id: str) -> None:
        await self._call("delete_store", owner, store_id)

    async def attach(self, owner: str, store_id: str, new: NewAttachment, *, wait_s: float = 0.0) -> Attachment:
        return await self._call("attach", owner, store_id, new, wait_s=wait_s)

    async def get_attachment(self, owner: str, store_id: str, file_id: str) -> Attachment:
        return await self._call("get_attachment", owner, store_id, file_id)

    async def list_attachments(
        self,
        owner: str,
        store_id: str,
        page: PageRequest,
        *,
        status: FileStatus | None = None,
        batch_id: str | None = None,
    ) -> Page[Attachment]:
        return await self._call("list_attachments", owner, store_id, page, status=status, batch_id=batch_id)

    async def get_text(self, owner: str, store_id: str, file_id: str, *, with_vectors: bool = False) -> StoredText:
        return await self._call("get_text", owner, store_id, file_id, with_vectors=with_vectors)

    async def create_batch(
        self, owner: str, batch: FileBatch, files: Sequence[NewAttachment], *, wait_s: float = 0.0
    ) -> FileBatch:
        return await self._call("create_batch", owner, batch, tuple(files), wait_s=wait_s)

    async def get_batch(self, owner: str, store_id: str, batch_id: str) -> FileBatch:
        return await self._call("get_batch", owner, store_id, batch_id)

    async def cancel_batch(self, owner: str, store_id: str, batch_id: str) -> FileBatch:
        return await self._call("cancel_batch", owner, store_id, batch_id)

    async def set_attributes(self, owner: str, store_id: str, file_id: str, attributes: Attributes) -> Attachment:
        return await self._call("set_attributes", owner, store_id, file_id, dict(attributes))

    async def detach(self, owner: str, store_id: str, file_id: str) -> None:
        await self._call("detach", owner, store_id, file_id)

    async def stats(self) -> Mapping[str, float]:
        return await self._call("stats")
