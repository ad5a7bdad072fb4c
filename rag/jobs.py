"""Ingestion in the background: jobs are rows of the store, and whoever owns the store runs them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

from rag.errors import RagError, UnsupportedFile
from rag.protocols import Ingestor
from rag.types import ErrorCode, FileError, IngestedFile, IngestJob

log = logging.getLogger(__name__)

ATTEMPTS = 3
PAUSES_S = (2.0, 10.0)  # before the second and the third attempt
CEILING_S = 3600.0  # for all attempts at one file

T = TypeVar("T")
Key = tuple[str, str]  # store and file


class JobStore(Protocol):
    """The rows; blocking, called from a thread."""

    def pending_jobs(self) -> Sequence[IngestJob]:
        """All files in progress, `attempt` being the number of the next attempt."""
        ...

    def finish(self, job: IngestJob, file: IngestedFile) -> bool:
        """Write the chunks and complete the file; False where it is no longer wanted."""
        ...

    def fail(self, job: IngestJob, error: FileError) -> None: ...

    def retry(self, job: IngestJob) -> None:
        """Count an attempt that failed."""
        ...


class JobRunner:
    """Runs each pending file once, a few at a time, the stores by turns. To be used from one event loop."""

    def __init__(
        self,
        store: JobStore,
        ingestor: Ingestor,
        *,
        max_in_flight: int = 8,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        ceiling_s: float = CEILING_S,
    ) -> None:
        self._store = store
        self._ingestor = ingestor
        self._max_in_flight = max_in_flight
        self._pause = pause
        self._ceiling_s = ceiling_s
        self._waiting: dict[str, deque[IngestJob]] = {}  # by store; the first store is served next
        self._running: dict[Key, asyncio.Task[None]] = {}
        self._settled: dict[Key, asyncio.Event] = {}
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="jobs")
        self._closed = False

    # --- what the store's owner asks --------------------------------------------------------------------------------

    async def resume(self) -> None:
        """Take up everything that is pending and not under way already."""
        for job in await self._in_thread(self._store.pending_jobs):
            self.submit(job)

    def submit(self, job: IngestJob) -> None:
        """Run the job when its turn comes; nothing where it waits or runs already."""
        if self._closed or _key(job) in self._settled:
            return
        self._settled[_key(job)] = asyncio.Event()
        self._waiting.setdefault(job.store_id, deque()).append(job)
        self._start_waiting()

    async def wait(self, store_id: str, file_id: str, timeout_s: float) -> None:
        """Return when the job has ended one way or another, or after `timeout_s` seconds."""
        settled = self._settled.get((store_id, file_id))
        if settled is None or timeout_s <= 0:
            return
        _, pending = await asyncio.wait([asyncio.ensure_future(settled.wait())], timeout=timeout_s)
        for task in pending:
            task.cancel()

    def cancel(self, store_id: str, file_id: str) -> None:
        """The file is no longer wanted in this store."""
        self._cancel_where(lambda key: key == (store_id, file_id))

    def cancel_store(self, store_id: str) -> None:
        """The store is gone."""
        self._cancel_where(lambda key: key[0] == store_id)

    def cancel_file(self, file_id: str) -> None:
        """The file is gone from everywhere."""
        self._cancel_where(lambda key: key[1] == file_id)

    @property
    def pending(self) -> int:
        """Jobs that wait or run."""
        return len(self._settled)

    async def close(self) -> None:
        """Stop. What was not finished stays pending in the store."""
        self._closed = True
        self._waiting.clear()
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for settled in self._settled.values():
            settled.set()
        self._settled.clear()
        self._threads.shutdown(wait=True)

    # --- running ----------------------------------------------------------------------------------------------------

    def _start_waiting(self) -> None:
        while self._waiting and len(self._running) < self._max_in_flight:
            store_id, jobs = next(iter(self._waiting.items()))
            del self._waiting[store_id]
            job = jobs.popleft()
            if jobs:
                self._waiting[store_id] = jobs  # to the end: the other stores come first
            task = asyncio.get_running_loop().create_task(self._run(job))
            self._running[_key(job)] = task
            task.add_done_callback(partial(self._ended, _key(job)))

    def _ended(self, key: Key, task: asyncio.Task[None]) -> None:
        self._running.pop(key, None)
        self._settle(key)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the job for file %s in store %s ended in an error", key[1], key[0], exc_info=error)
        if not self._closed:
            self._start_waiting()

    def _settle(self, key: Key) -> None:
        settled = self._settled.pop(key, None)
        if settled is not None:
            settled.set()

    def _cancel_where(self, wanted: Callable[[Key], bool]) -> None:
        for store_id, jobs in list(self._waiting.items()):
            kept = deque(job for job in jobs if not wanted(_key(job)))
            for job in jobs:
                if wanted(_key(job)):
                    self._settle(_key(job))
            if kept:
                self._waiting[store_id] = kept
            else:
                del self._waiting[store_id]
        for key, task in list(self._running.items()):
            if wanted(key):
                task.cancel()

    async def _run(self, job: IngestJob) -> None:
        try:
            async with asyncio.timeout(self._ceiling_s):
                await self._attempt(job)
        except TimeoutError:
            message = f"The file was not ingested within {self._ceiling_s:.0f} seconds."
            await self._fail(job, FileError(ErrorCode.SERVER_ERROR, message))

    async def _attempt(self, job: IngestJob) -> None:
        for attempt in range(job.attempt, ATTEMPTS + 1):
            try:
                file = await self._ingestor.ingest(job)
                if not await self._in_thread(self._store.finish, job, file):
                    log.info("file %s is no longer wanted in store %s", job.file_id, job.store_id)
            except UnsupportedFile as error:
                await self._fail(job, FileError(error.reason, error.message))
            except Exception as error:
                log.warning("attempt %d at file %s failed", attempt, job.file_id, exc_info=error)
                if attempt == ATTEMPTS:
                    await self._fail(job, FileError(ErrorCode.SERVER_ERROR, _reason(error)))
                    return
                await self._in_thread(self._store.retry, replace(job, attempt=attempt))
                await self._pause(PAUSES_S[attempt - 1])
                continue
            return
        await self._fail(job, FileError(ErrorCode.SERVER_ERROR, f"The file could not be ingested in {ATTEMPTS} tries."))

    async def _fail(self, job: IngestJob, error: FileError) -> None:
        log.info("file %s failed in store %s: %s", job.file_id, job.store_id, error.message)
        await self._in_thread(self._store.fail, job, error)

    async def _in_thread(self, work: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *args)


def _key(job: IngestJob) -> Key:
    return job.store_id, job.file_id


def _reason(error: Exception) -> str:
    return error.message if isinstance(error, RagError) else "The file could not be ingested because of a fault here."
