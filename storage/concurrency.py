"""The asynchronous edge of the store: blocking reads and writes on threads, ingestion as background jobs."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

import duckdb

from rag.errors import RagError
from rag.filters import Filter
from rag.jobs import JobRunner
from rag.protocols import Blobs, Ingestor
from rag.settings import FileBatchParams, IngestionSettings
from rag.types import (
    Attachment,
    Attributes,
    FileBatch,
    FileRecord,
    FileStatus,
    Float32,
    Hit,
    IngestJob,
    ModelInfo,
    NewAttachment,
    Page,
    PageRequest,
    StoredText,
    VectorStoreRecord,
)
from storage.local import LocalStores

log = logging.getLogger(__name__)

HOUSEKEEPING_S = 60.0
BATCH_LIFE_S = 7 * 86_400
ORPHAN_AGE_S = 3600.0  # an upload has its record within moments

P = ParamSpec("P")
R = TypeVar("R")


class AsyncStores:
    """`rag.protocols.VectorStores` over the store in this process, which it owns, with the jobs that fill it."""

    def __init__(
        self,
        stores: LocalStores,
        ingestor: Ingestor,
        blobs: Blobs,
        *,
        readers: int = 4,
        ingestion: IngestionSettings | None = None,
        batches: FileBatchParams | None = None,
    ) -> None:
        self._stores = stores
        self._blobs = blobs
        self._batches = batches or FileBatchParams()
        self._threads = ThreadPoolExecutor(readers, thread_name_prefix="store")
        ingestion = ingestion or IngestionSettings()
        self._jobs = JobRunner(
            stores,
            ingestor,
            max_in_flight=ingestion.max_files_in_flight,
            batches=self._batches,
            ceiling_s=ingestion.max_seconds,
        )
        self._housekeeping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Take up the work that the last owner left."""
        await self._jobs.resume()
        self._housekeeping = asyncio.get_running_loop().create_task(self._keep_house())

    async def _keep_house(self) -> None:
        batches_purged = -math.inf
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            try:
                await self.sweep()
                if time.monotonic() - batches_purged >= self._batches.cleanup_interval_seconds:
                    batches_purged = time.monotonic()
                    await self._in_thread(self._stores.purge_batches, BATCH_LIFE_S)
            except (RagError, OSError, duckdb.Error):  # a full disk, for one
                log.exception("sweeping did not succeed; the next round tries again")

    async def sweep(self) -> None:
        """Remove what has expired and bytes that belong to no upload, and take up jobs that nobody works on."""
        await self._jobs.resume()
        await self._in_thread(self._stores.purge_expired)
        for file_id in await self._in_thread(self._stores.purge_uploads):
            await self._blobs.delete(file_id)
        lying = await self._blobs.ids(min_age_s=ORPHAN_AGE_S)
        for file_id in await self._in_thread(self._stores.unknown_files, lying):
            await self._blobs.delete(file_id)

    async def close(self) -> None:
        """Stop the jobs, which stay pending, and give the data back."""
        if self._housekeeping is not None:
            self._housekeeping.cancel()
        await self._jobs.close()
        await self._in_thread(self._stores.close)
        self._threads.shutdown(wait=True)

    async def _in_thread(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(work, *args, **kwargs))

    # --- files ------------------------------------------------------------------------------------------------------

    async def create_file(self, record: FileRecord) -> FileRecord:
        return await self._in_thread(self._stores.create_file, record)

    async def get_file(self, owner: str, file_id: str) -> FileRecord:
        return await self._in_thread(self._stores.get_file, owner, file_id)

    async def list_files(self, owner: str, page: PageRequest, *, purpose: str | None = None) -> Page[FileRecord]:
        return await self._in_thread(self._stores.list_files, owner, page, purpose=purpose)

    async def delete_file(self, owner: str, file_id: str) -> None:
        await self._in_thread(self._stores.delete_file, owner, file_id)
        self._jobs.cancel_file(file_id)

    # --- vector stores ----------------------------------------------------------------------------------------------

    async def create_store(
        self, record: VectorStoreRecord, files: Sequence[NewAttachment] = (), *, wait_s: float = 0.0
    ) -> VectorStoreRecord:
        created = await self._in_thread(self._stores.create_store, record, files)
        if not files:
            return created
        await self._jobs.resume()
        await self._wait(record.id, files, wait_s)
        return await self.get_store(record.owner, record.id)

    async def get_store(self, owner: str, store_id: str) -> VectorStoreRecord:
        return await self._in_thread(self._stores.get_store, owner, store_id)

    async def list_stores(self, owner: str, page: PageRequest) -> Page[VectorStoreRecord]:
        return await self._in_thread(self._stores.list_stores, owner, page)

    async def update_store(self, owner: str, store_id: str, changes: Mapping[str, object]) -> VectorStoreRecord:
        return await self._in_thread(self._stores.update_store, owner, store_id, changes)

    async def delete_store(self, owner: str, store_id: str) -> None:
        await self._in_thread(self._stores.delete_store, owner, store_id)
        self._jobs.cancel_store(store_id)

    # --- files of a store -------------------------------------------------------------------------------------------

    async def attach(self, owner: str, store_id: str, new: NewAttachment, *, wait_s: float = 0.0) -> Attachment:
        attachment = await self._in_thread(self._stores.attach, owner, store_id, new)
        if attachment.status is not FileStatus.IN_PROGRESS:
            return attachment
        self._jobs.submit(IngestJob(store_id, new.file_id, attachment.filename, attachment.chunking))
        await self._jobs.wait(store_id, new.file_id, wait_s)
        return await self.get_attachment(owner, store_id, new.file_id)

    async def get_attachment(self, owner: str, store_id: str, file_id: str) -> Attachment:
        return await self._in_thread(self._stores.get_attachment, owner, store_id, file_id)

    async def list_attachments(
        self,
        owner: str,
        store_id: str,
        page: PageRequest,
        *,
        status: FileStatus | None = None,
        batch_id: str | None = None,
    ) -> Page[Attachment]:
        return await self._in_thread(
            self._stores.list_attachments, owner, store_id, page, status=status, batch_id=batch_id
        )

    async def get_text(self, owner: str, store_id: str, file_id: str, *, with_vectors: bool = False) -> StoredText:
        return await self._in_thread(self._stores.get_text, owner, store_id, file_id, with_vectors=with_vectors)

    async def set_attributes(self, owner: str, store_id: str, file_id: str, attributes: Attributes) -> Attachment:
        return await self._in_thread(self._stores.set_attributes, owner, store_id, file_id, attributes)

    async def detach(self, owner: str, store_id: str, file_id: str) -> None:
        await self._in_thread(self._stores.detach, owner, store_id, file_id)
        self._jobs.cancel(store_id, file_id)

    # --- batches of files -------------------------------------------------------------------------------------------

    async def create_batch(
        self, owner: str, batch: FileBatch, files: Sequence[NewAttachment], *, wait_s: float = 0.0
    ) -> FileBatch:
        await self._in_thread(self._stores.create_batch, owner, batch, files)
        await self._jobs.resume()
        await self._wait(batch.store_id, files, wait_s)
        return await self.get_batch(owner, batch.store_id, batch.id)

    async def get_batch(self, owner: str, store_id: str, batch_id: str) -> FileBatch:
        return await self._in_thread(self._stores.get_batch, owner, store_id, batch_id)

    async def cancel_batch(self, owner: str, store_id: str, batch_id: str) -> FileBatch:
        batch = await self._in_thread(self._stores.cancel_batch, owner, store_id, batch_id)
        self._jobs.cancel_batch(batch_id)
        return batch

    async def _wait(self, store_id: str, files: Sequence[NewAttachment], wait_s: float) -> None:
        deadline = time.monotonic() + wait_s
        for new in files:
            await self._jobs.wait(store_id, new.file_id, deadline - time.monotonic())

    # --- search -----------------------------------------------------------------------------------------------------

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
        return await self._in_thread(
            self._stores.search, owner, store_id, queries, model=model, limit=limit, where=where
        )

    async def stats(self) -> dict[str, float]:
        """Numbers for metrics."""
        return {**await self._in_thread(self._stores.stats), **self._jobs.stats()}
