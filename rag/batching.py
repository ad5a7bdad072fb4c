"""Batching while busy: whoever waits when a worker becomes free goes along; nobody waits for company."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Generic, TypeVar

from rag.errors import ModelFailed, Overloaded, RagError
from rag.types import Priority

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

# Bulk work takes what interactive work leaves of the processor. Only its own threads can be told so.
BULK_NICENESS = 19


def plan_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Indices grouped by similar length, so that little is padded.

    Every index appears once. A group's padded size (longest times count) is at most `max_tokens`, except that a
    single item over the budget gets a group of its own. Within a group lengths ascend; equal lengths keep their order.
    """
    batches: list[list[int]] = []
    current: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if current and lengths[index] * (len(current) + 1) > max_tokens:
            batches.append(current)
            current = []
        current.append(index)
    if current:
        batches.append(current)
    return batches


@dataclass(frozen=True, slots=True)
class BatcherStats:
    """What went through since the start; times in seconds, summed over items."""

    batches: int = 0
    items: int = 0
    tokens: int = 0
    queue_s: float = 0.0
    compute_s: float = 0.0  # summed over batches
    queued: int = 0  # now

    @property
    def mean_batch_items(self) -> float:
        return self.items / self.batches if self.batches else 0.0

    def as_numbers(self) -> dict[str, float]:
        """By name, for metrics."""
        return {name: float(value) for name, value in asdict(self).items()}


@dataclass(slots=True, eq=False)
class _Request(Generic[R]):
    """One caller: a place for each result, and the future that the caller awaits."""

    future: asyncio.Future[list[R]]
    results: list[R | None]
    missing: int


@dataclass(slots=True, eq=False)
class _Entry(Generic[T, R]):
    request: _Request[R]
    index: int
    item: T
    tokens: int
    since: float


@dataclass(slots=True, eq=False)
class _Lane(Generic[T, R]):
    """The queue of one priority and the threads that serve it."""

    pool: ThreadPoolExecutor
    idle: int
    queue: deque[_Entry[T, R]] = field(default_factory=deque)


@dataclass(slots=True)
class _Counters:
    batches: int = 0
    items: int = 0
    tokens: int = 0
    queue_s: float = 0.0
    compute_s: float = 0.0
    outcomes: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=32))  # tokens, seconds


class Batcher(Generic[T, R]):
    """A bounded queue in front of a blocking function that works on several items at once.

    Items are chosen by age; among the `max_items` oldest, those that fit the oldest one in length go with it, up to
    `max_tokens` padded. Each priority has `workers` threads of its own, which take a batch whenever they are free: a
    query never waits for ingestion to end its batch, and the scheduler lets the threads of bulk work stand back.
    Callers who have gone are skipped. When a batch fails its members run singly once, so that one bad item fails alone.

    To be used from one event loop.
    """

    def __init__(
        self,
        run: Callable[[Sequence[T]], Sequence[R]],
        *,
        max_tokens: int,
        max_items: int = 256,
        max_queued: int = 2048,
        workers: int = 1,
        name: str = "model",
    ) -> None:
        """`run` gives one result per item, in order; it is called by at most `workers` threads of each priority."""
        self._run = run
        self._max_tokens = max_tokens
        self._max_items = max_items
        self._max_queued = max_queued
        self._name = name
        self._workers = workers
        self._lanes: dict[Priority, _Lane[T, R]] = {
            priority: _Lane(ThreadPoolExecutor(workers, f"{name}-{priority}", initializer), workers)
            for priority, initializer in ((Priority.INTERACTIVE, None), (Priority.BULK, _stand_back))
        }
        self._counters = _Counters()
        self._running: set[asyncio.Task[None]] = set()

    # --- callers ----------------------------------------------------------------------------------------------------

    def admit(self, priority: Priority = Priority.INTERACTIVE) -> None:
        """Refuse before any work is done.

        Raises:
            Overloaded: as many items of this priority wait as may.
        """
        waiting = len(self._lanes[priority].queue)
        if waiting >= self._max_queued:
            raise Overloaded(f"The {self._name} has {waiting} texts waiting; try again.", self._retry_after())

    async def submit(
        self, items: Sequence[T], lengths: Sequence[int], *, priority: Priority = Priority.INTERACTIVE
    ) -> list[R]:
        """One result per item, in order. `lengths` are in tokens.

        Raises:
            Overloaded: the queue is full.
            RagError: what `run` raised for one of the items when it ran alone; anything else becomes ModelFailed.
        """
        self.admit(priority)
        if not items:
            return []
        future: asyncio.Future[list[R]] = asyncio.get_running_loop().create_future()
        request: _Request[R] = _Request(future, [None] * len(items), len(items))
        now = time.perf_counter()
        entries = (
            _Entry(request, i, item, tokens, now) for i, (item, tokens) in enumerate(zip(items, lengths, strict=True))
        )
        lane = self._lanes[priority]
        lane.queue.extend(entries)
        self._dispatch(lane)
        return await future

    @property
    def queued(self) -> int:
        """How many items wait, those of callers who have gone included."""
        return sum(len(lane.queue) for lane in self._lanes.values())

    def stats(self) -> BatcherStats:
        """Totals since the start."""
        counters = self._counters
        return BatcherStats(
            counters.batches, counters.items, counters.tokens, counters.queue_s, counters.compute_s, self.queued
        )

    def close(self) -> None:
        """Fail whoever still waits, and let the threads end."""
        for lane in self._lanes.values():
            for entry in lane.queue:
                _fail(entry, Overloaded(f"The {self._name} is shutting down; try again."))
            lane.queue.clear()
            lane.pool.shutdown(wait=False, cancel_futures=True)

    # --- workers ----------------------------------------------------------------------------------------------------

    def _dispatch(self, lane: _Lane[T, R]) -> None:
        while lane.idle and (batch := self._next_batch(lane)):
            lane.idle -= 1
            task = asyncio.get_running_loop().create_task(self._work(lane, batch))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    def _next_batch(self, lane: _Lane[T, R]) -> list[_Entry[T, R]]:
        """The oldest waiting item and those of the window that go well with it; the rest keeps its place."""
        queue = lane.queue
        window: list[_Entry[T, R]] = []
        while queue and len(window) < self._max_items:
            entry = queue.popleft()
            if not entry.request.future.done():
                window.append(entry)
        if not window:
            return []
        # Idle workers share what waits, instead of one taking all.
        share = math.ceil(sum(entry.tokens for entry in window) / lane.idle)
        budget = min(self._max_tokens, max(share, window[0].tokens))
        chosen = next(batch for batch in plan_batches([entry.tokens for entry in window], budget) if 0 in batch)
        taken = set(chosen)
        queue.extendleft(reversed([entry for i, entry in enumerate(window) if i not in taken]))
        return [window[i] for i in chosen]

    async def _work(self, lane: _Lane[T, R], batch: list[_Entry[T, R]]) -> None:
        loop = asyncio.get_running_loop()
        started = time.perf_counter()
        try:
            results = await loop.run_in_executor(lane.pool, self._run_safely, [entry.item for entry in batch])
        finally:
            lane.idle += 1
        self._record(batch, started)
        for entry, result in zip(batch, results, strict=True):
            if isinstance(result, RagError):
                _fail(entry, result)
            else:
                _deliver(entry, result)
        self._dispatch(lane)

    def _run_safely(self, items: Sequence[T]) -> list[R | RagError]:
        """In a worker thread. Errors are results here, one per item, so that each reaches its own caller."""
        try:
            results = list(self._run(items))
            if len(results) != len(items):
                raise ModelFailed(f"The {self._name} gave {len(results)} results for {len(items)} texts.")
            return list[R | RagError](results)
        except Exception as error:
            if len(items) > 1:
                log.warning("a batch of %d failed in the %s; running its members singly", len(items), self._name)
                return [result for item in items for result in self._run_safely([item])]
            log.exception("the %s failed on one text", self._name)
            return [error if isinstance(error, RagError) else ModelFailed(f"The {self._name} failed on this text.")]

    def _record(self, batch: Iterable[_Entry[T, R]], started: float) -> None:
        seconds = time.perf_counter() - started
        counters = self._counters
        counters.batches += 1
        counters.compute_s += seconds
        tokens = 0
        for entry in batch:
            counters.items += 1
            counters.queue_s += started - entry.since
            tokens += entry.tokens
        counters.tokens += tokens
        counters.outcomes.append((tokens, seconds))

    def _retry_after(self) -> int:
        """Seconds until what waits now is done, by the pace of the last batches."""
        tokens = sum(entry.tokens for lane in self._lanes.values() for entry in lane.queue)
        done = sum(count for count, _ in self._counters.outcomes)
        seconds = sum(took for _, took in self._counters.outcomes)
        return math.ceil(tokens * seconds / done / self._workers) if done else 1


def _stand_back() -> None:
    if sys.platform == "linux":  # where a thread has a priority of its own
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), BULK_NICENESS)


def _deliver(entry: _Entry[T, R], result: R) -> None:
    request = entry.request
    request.results[entry.index] = result
    request.missing -= 1
    if not request.missing and not request.future.done():
        request.future.set_result([found for found in request.results if found is not None])


def _fail(entry: _Entry[T, R], error: RagError) -> None:
    if not entry.request.future.done():
        entry.request.future.set_exception(error)
