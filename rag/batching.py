"""Batching while busy: whoever waits when a worker becomes free goes along; nobody waits for company."""

from __future__ import annotations

import asyncio
import logging
import math
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

BULK_EVERY = 8  # one batch in so many is bulk work while interactive work waits too, so that ingestion still moves


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

    Items are chosen by priority, then age; among the `max_items` oldest, those that fit the oldest one in length go
    with it, up to `max_tokens` padded. Each of `workers` threads takes a batch whenever it is free. Callers who have
    gone are skipped. When a batch fails its members run singly once, so that one bad item fails alone.

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
        """`run` gives one result per item, in order; it is called by at most `workers` threads at once."""
        self._run = run
        self._max_tokens = max_tokens
        self._max_items = max_items
        self._max_queued = max_queued
        self._name = name
        self._workers = workers
        self._idle = workers
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix=name)
        self._queues: dict[Priority, deque[_Entry[T, R]]] = {priority: deque() for priority in Priority}
        self._counters = _Counters()
        self._turns = 0
        self._running: set[asyncio.Task[None]] = set()

    # --- callers ----------------------------------------------------------------------------------------------------

    def admit(self) -> None:
        """Refuse before any work is done.

        Raises:
            Overloaded: as many items wait as may.
        """
        if self.queued >= self._max_queued:
            raise Overloaded(f"The {self._name} has {self.queued} texts waiting; try again.", self._retry_after())

    async def submit(
        self, items: Sequence[T], lengths: Sequence[int], *, priority: Priority = Priority.INTERACTIVE
    ) -> list[R]:
        """One result per item, in order. `lengths` are in tokens.

        Raises:
            Overloaded: the queue is full.
            RagError: what `run` raised for one of the items when it ran alone; anything else becomes ModelFailed.
        """
        self.admit()
        if not items:
            return []
        future: asyncio.Future[list[R]] = asyncio.get_running_loop().create_future()
        request: _Request[R] = _Request(future, [None] * len(items), len(items))
        now = time.perf_counter()
        entries = (
            _Entry(request, i, item, tokens, now) for i, (item, tokens) in enumerate(zip(items, lengths, strict=True))
        )
        self._queues[priority].extend(entries)
        self._dispatch()
        return await future

    @property
    def queued(self) -> int:
        """How many items wait, those of callers who have gone included."""
        return sum(map(len, self._queues.values()))

    def stats(self) -> BatcherStats:
        """Totals since the start."""
        counters = self._counters
        return BatcherStats(
            counters.batches, counters.items, counters.tokens, counters.queue_s, counters.compute_s, self.queued
        )

    def close(self) -> None:
        """Fail whoever still waits, and let the threads end."""
        for queue in self._queues.values():
            for entry in queue:
                _fail(entry, Overloaded(f"The {self._name} is shutting down; try again."))
            queue.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)

    # --- workers ----------------------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        while self._idle and (batch := self._next_batch()):
            self._idle -= 1
            task = asyncio.get_running_loop().create_task(self._work(batch))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    def _next_batch(self) -> list[_Entry[T, R]]:
        """The oldest waiting item and those of the window that go well with it; the rest keeps its place."""
        queue = self._next_queue()
        window: list[_Entry[T, R]] = []
        while queue and len(window) < self._max_items:
            entry = queue.popleft()
            if not entry.request.future.done():
                window.append(entry)
        if not window:
            return self._next_batch() if self.queued else []
        # Idle workers share what waits, instead of one taking all.
        share = math.ceil(sum(entry.tokens for entry in window) / self._idle)
        budget = min(self._max_tokens, max(share, window[0].tokens))
        chosen = next(batch for batch in plan_batches([entry.tokens for entry in window], budget) if 0 in batch)
        taken = set(chosen)
        queue.extendleft(reversed([entry for i, entry in enumerate(window) if i not in taken]))
        return [window[i] for i in chosen]

    def _next_queue(self) -> deque[_Entry[T, R]]:
        interactive, bulk = self._queues[Priority.INTERACTIVE], self._queues[Priority.BULK]
        self._turns += 1
        if bulk and (not interactive or self._turns % BULK_EVERY == 0):
            return bulk
        return interactive

    async def _work(self, batch: list[_Entry[T, R]]) -> None:
        loop = asyncio.get_running_loop()
        started = time.perf_counter()
        try:
            results = await loop.run_in_executor(self._pool, self._run_safely, [entry.item for entry in batch])
        finally:
            self._idle += 1
        self._record(batch, started)
        for entry, result in zip(batch, results, strict=True):
            if isinstance(result, RagError):
                _fail(entry, result)
            else:
                _deliver(entry, result)
        self._dispatch()

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
        tokens = sum(entry.tokens for queue in self._queues.values() for entry in queue)
        done = sum(count for count, _ in self._counters.outcomes)
        seconds = sum(took for _, took in self._counters.outcomes)
        return math.ceil(tokens * seconds / done / self._workers) if done else 1


def _deliver(entry: _Entry[T, R], result: R) -> None:
    request = entry.request
    request.results[entry.index] = result
    request.missing -= 1
    if not request.missing and not request.future.done():
        request.future.set_result([found for found in request.results if found is not None])


def _fail(entry: _Entry[T, R], error: RagError) -> None:
    if not entry.request.future.done():
        entry.request.future.set_exception(error)
