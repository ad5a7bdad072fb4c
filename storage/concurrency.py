"""The asynchronous edge of the store: blocking reads and writes on threads, ingestion as background jobs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from rag.errors import RagError
from rag.filters import Filter
from rag.jobs import JobRunner
from rag.protocols import Ingestor
from rag.types import (
    Attachment,
    Attributes,
    FileRecord,
    FileStatus,
    Float32,
    Hit,
    IngestJob,
    ModelInfo,
    NewAttachment,
    Page,
    PageRequest,
    VectorStoreRecord,
)
from storage.local import LocalStores

log = logging.getLogger(__name__)

HOUSEKEEPING_S = 60.0

P = ParamSpec("P")
R = TypeVar("R")


class AsyncStores:
    """`rag.protocols.VectorStores` over the store in this process, which it owns, with the jobs that fill it."""

    def __init__(self, stores: LocalStores, ingestor: Ingestor, *, readers: int = 4, max_in_flight: int = 8) -> None:
        self._stores = stores
        self._threads = ThreadPoolExecutor(readers, thread_name_prefix="store")
        self._jobs = JobRunner(stores, ingestor, max_in_flight=max_in_flight)
        self._housekeeping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Take up the work that the last owner left."""
        await self._jobs.resume()
        self._housekeeping = asyncio.get_running_loop().create_task(self._keep_house())

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            try:
                await self._in_thread(self._stores.purge_expired)
            except RagError:
                log.exception("expired stores could not be purged; they stay closed, and the next round tries again")

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
        deadline = time.monotonic() + wait_s
        for new in files:
            await self._jobs.wait(record.id, new.file_id, deadline - time.monotonic())
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
        file = await self.get_file(owner, new.file_id)
        self._jobs.submit(IngestJob(store_id, new.file_id, file.filename, attachment.chunking))
        await self._jobs.wait(store_id, new.file_id, wait_s)
        return await self.get_attachment(owner, store_id, new.file_id)

    async def get_attachment(self, owner: str, store_id: str, file_id: str) -> Attachment:
        return await self._in_thread(self._stores.get_attachment, owner, store_id, file_id)

    async def list_attachments(
        self, owner: str, store_id: str, page: PageRequest, *, status: FileStatus | None = None
    ) -> Page[Attachment]:
        return await self._in_thread(self._stores.list_attachments, owner, store_id, page, status=status)

    async def set_attributes(self, owner: str, store_id: str, file_id: str, attributes: Attributes) -> Attachment:
        return await self._in_thread(self._stores.set_attributes, owner, store_id, file_id, attributes)

    async def detach(self, owner: str, store_id: str, file_id: str) -> None:
        await self._in_thread(self._stores.detach, owner, store_id, file_id)
        self._jobs.cancel(store_id, file_id)

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
        return await self._in_thread(self._stores.stats)
