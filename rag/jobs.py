"""Ingestion in the background: jobs are rows of the store, and whoever owns the store runs them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from rag.errors import RagError, StoreUnavailable, UnsupportedFile
from rag.protocols import Ingestor
from rag.settings import FileBatchParams
from rag.types import ErrorCode, FileError, IngestedPart, IngestJob

log = logging.getLogger(__name__)

ATTEMPTS = 3
PAUSES_S = (2.0, 10.0)  # before the second and the third attempt
STAGES = ("read", "chunk", "embed", "write")
CEILING_S = 3600.0  # for all attempts at one file

T = TypeVar("T")
Key = tuple[str, str]  # store and file


class JobStore(Protocol):
    """The rows; blocking, called from a thread."""

    def pending_jobs(self) -> Sequence[IngestJob]:
        """All files in progress, `attempt` being the number of the next attempt."""
        ...

    def begin(self, job: IngestJob) -> IngestJob | None:
        """The job with what is kept of it and what its owner has room for; None where it is no longer wanted."""
        ...

    def keep(self, job: IngestJob, part: IngestedPart) -> bool:
        """Write the chunks, and complete the file with the last part; False where it is no longer wanted."""
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

    @property
    def queue(self) -> str:
        return self.job.batch_id or self.job.store_id


@dataclass(eq=False, slots=True)
class _Queue:
    """What waits of one batch, or of one store outside of batches."""

    entries: deque[_Entry] = field(default_factory=deque)
    served: int = 0  # in this turn


class JobRunner:
    """Runs each pending file once, a few at a time, batches and stores by turns. To be used from one event loop.

    Of one batch at most `batches.max_concurrent_files_per_batch` files run at once, and `batches.file_batch_chunk_size`
    are taken before it is the next one's turn.
    """

    def __init__(
        self,
        store: JobStore,
        ingestor: Ingestor,
        *,
        max_in_flight: int = 8,
        batches: FileBatchParams | None = None,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        ceiling_s: float = CEILING_S,
    ) -> None:
        self._store = store
        self._ingestor = ingestor
        self._max_in_flight = max_in_flight
        self._batches = batches or FileBatchParams()
        self._pause = pause
        self._ceiling_s = ceiling_s
        self._entries: dict[Key, _Entry] = {}
        self._waiting: dict[str, _Queue] = {}  # by batch or store; the first is served next
        self._running: dict[asyncio.Task[None], _Entry] = {}  # cancelled ones too, until they have ended
        self._spent = dict.fromkeys(STAGES, 0.0)
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
        self._waiting.setdefault(entry.queue, _Queue()).entries.append(entry)
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
        self._cancel_where(lambda entry: entry.key == (store_id, file_id))

    def cancel_batch(self, batch_id: str) -> None:
        """The batch was cancelled."""
        self._cancel_where(lambda entry: entry.job.batch_id == batch_id)

    def cancel_store(self, store_id: str) -> None:
        """The store is gone."""
        self._cancel_where(lambda entry: entry.job.store_id == store_id)

    def cancel_file(self, file_id: str) -> None:
        """The file is gone from everywhere."""
        self._cancel_where(lambda entry: entry.job.file_id == file_id)

    @property
    def pending(self) -> int:
        """Jobs that wait or run."""
        return len(self._entries)

    def stats(self) -> dict[str, float]:
        """Seconds since the start by stage, those of files side by side summed."""
        return {f"ingest_{stage}_s": seconds for stage, seconds in self._spent.items()}

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
        while len(self._running) < self._max_in_flight and (entry := self._next()) is not None:
            task = asyncio.get_running_loop().create_task(self._run(entry.job))
            self._running[task] = entry
            task.add_done_callback(self._ended)

    def _next(self) -> _Entry | None:
        for name, queue in self._waiting.items():
            batched = queue.entries[0].job.batch_id is not None
            if batched and self._running_of(name) >= self._batches.max_concurrent_files_per_batch:
                continue
            entry = queue.entries.popleft()
            queue.served += 1
            if not queue.entries or not batched or queue.served >= self._batches.file_batch_chunk_size:
                del self._waiting[name]
                if queue.entries:
                    self._waiting[name] = _Queue(queue.entries)  # to the end: the others come first
            return entry
        return None

    def _running_of(self, queue: str) -> int:
        return sum(entry.queue == queue for entry in self._running.values())

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

    def _cancel_where(self, unwanted: Callable[[_Entry], bool]) -> None:
        gone = [entry for entry in self._entries.values() if unwanted(entry)]
        for entry in gone:
            self._settle(entry)
        for name, queue in list(self._waiting.items()):
            queue.entries = deque(entry for entry in queue.entries if not entry.settled.is_set())
            if not queue.entries:
                del self._waiting[name]
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
                if not await self._ingest(job):
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

    async def _ingest(self, job: IngestJob) -> bool:
        begun = await self._in_thread(self._store.begin, job)
        if begun is None:
            return False
        async with aclosing(self._ingestor.ingest(begun)) as parts:
            async for part in parts:
                for stage, seconds in part.timings.items():
                    self._spent[stage] += seconds
                started = time.perf_counter()
                kept = await self._in_thread(self._store.keep, begun, part)
                self._spent["write"] += time.perf_counter() - started
                if not kept:
                    return False
                if part.is_last:
                    return True
        raise StoreUnavailable("The file was not read to its end.")

    async def _fail(self, job: IngestJob, error: FileError) -> None:
        log.info("file %s failed in store %s: %s", job.file_id, job.store_id, error.message)
        await self._in_thread(self._store.fail, job, error)

    async def _in_thread(self, work: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *args)


def _reason(error: Exception) -> str:
    return error.message if isinstance(error, RagError) else "The file could not be ingested because of a fault here."
