"""Ingestion in the background: jobs are rows of the store, and whoever owns the store runs them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
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


@dataclass(eq=False, slots=True)
class _Entry:
    """A job that waits or runs, and who waits for it."""

    job: IngestJob
    settled: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def key(self) -> Key:
        return self.job.store_id, self.job.file_id


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
        self._entries: dict[Key, _Entry] = {}
        self._waiting: dict[str, deque[_Entry]] = {}  # by store; the first store is served next
        self._running: dict[asyncio.Task[None], _Entry] = {}  # cancelled ones too, until they have ended
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="jobs")
        self._closed = False

    # --- what the store's owner asks --------------------------------------------------------------------------------

    async def resume(self) -> None:
        """Take up everything that is pending and not under way already."""
        for job in await self._in_thread(self._store.pending_jobs):
            self.submit(job)

    def submit(self, job: IngestJob) -> None:
        """Run the job when its turn comes; nothing where it waits or runs already."""
        key = (job.store_id, job.file_id)
        if self._closed or key in self._entries:
            return
        entry = self._entries[key] = _Entry(job)
        self._waiting.setdefault(job.store_id, deque()).append(entry)
        self._start_waiting()

    async def wait(self, store_id: str, file_id: str, timeout_s: float) -> None:
        """Return when the job has ended one way or another, or after `timeout_s` seconds."""
        entry = self._entries.get((store_id, file_id))
        if entry is None or timeout_s <= 0:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await entry.settled.wait()

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
        return len(self._entries)

    async def close(self) -> None:
        """Stop. What was not finished stays pending in the store."""
        self._closed = True
        self._waiting.clear()
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for entry in list(self._entries.values()):
            self._settle(entry)
        await asyncio.to_thread(self._threads.shutdown)

    # --- running ----------------------------------------------------------------------------------------------------

    def _start_waiting(self) -> None:
        while self._waiting and len(self._running) < self._max_in_flight:
            store_id, entries = next(iter(self._waiting.items()))
            del self._waiting[store_id]
            entry = entries.popleft()
            if entries:
                self._waiting[store_id] = entries  # to the end: the other stores come first
            task = asyncio.get_running_loop().create_task(self._run(entry.job))
            self._running[task] = entry
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        entry = self._running.pop(task)
        self._settle(entry)
        if not task.cancelled() and (error := task.exception()) is not None:
            store_id, file_id = entry.key
            log.error("the job for file %s in store %s ended in an error", file_id, store_id, exc_info=error)
        if not self._closed:
            self._start_waiting()

    def _settle(self, entry: _Entry) -> None:
        """Nobody waits any longer; the same file may be submitted anew."""
        entry.settled.set()
        if self._entries.get(entry.key) is entry:
            del self._entries[entry.key]

    def _cancel_where(self, wanted: Callable[[Key], bool]) -> None:
        gone = [entry for key, entry in self._entries.items() if wanted(key)]
        for entry in gone:
            self._settle(entry)
        for store_id, entries in list(self._waiting.items()):
            kept = deque(entry for entry in entries if not entry.settled.is_set())
            if kept:
                self._waiting[store_id] = kept
            else:
                del self._waiting[store_id]
        for task, entry in self._running.items():
            if entry in gone:
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


def _reason(error: Exception) -> str:
    return error.message if isinstance(error, RagError) else "The file could not be ingested because of a fault here."
