"""Batching: the plan is complete and within budget; the queue is fair, bounded and forgiving."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag.batching import BULK_NICENESS, Batcher, plan_batches
from rag.errors import InvalidRequest, ModelFailed, Overloaded
from rag.types import Priority


@given(st.lists(st.integers(0, 600), max_size=80), st.integers(1, 1000))
def test_a_plan_holds_every_index_once_and_no_group_over_budget_but_a_lone_giant(lengths: list[int], budget: int):
    batches = plan_batches(lengths, budget)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or max(lengths[i] for i in batch) * len(batch) <= budget


@given(st.lists(st.integers(1, 100), max_size=80))
def test_a_plan_groups_neighbours_in_length(lengths: list[int]):
    flat = [lengths[i] for batch in plan_batches(lengths, 256) for i in batch]
    assert flat == sorted(lengths)


class Gate:
    """A model that waits to be let through, and remembers what it was given."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.entered = threading.Semaphore(0)
        self._open = threading.Semaphore(0)

    def __call__(self, items: Sequence[str]) -> list[str]:
        self.batches.append(list(items))
        self.entered.release()
        assert self._open.acquire(timeout=10)
        if "poison" in items:
            raise InvalidRequest("poison", "input")
        return [item.upper() for item in items]

    def open(self, times: int = 1000) -> None:
        self._open.release(times)

    async def busy(self) -> None:
        assert await asyncio.to_thread(self.entered.acquire, timeout=10)


@asynccontextmanager
async def batcher(run: Callable[[Sequence[str]], Sequence[str]], **options: int) -> AsyncIterator[Batcher[str, str]]:
    made = Batcher(run, **{"max_tokens": 1000, **options})
    try:
        yield made
    finally:
        made.close()


def submit(queue: Batcher[str, str], *items: str, priority: Priority = Priority.INTERACTIVE) -> asyncio.Task[list[str]]:
    return asyncio.create_task(queue.submit(items, [len(item) for item in items], priority=priority))


async def queued(queue: Batcher[str, str], count: int) -> None:
    async with asyncio.timeout(10):
        while queue.queued != count:
            await asyncio.sleep(0)


async def test_whoever_waits_while_the_model_is_busy_goes_along_in_one_batch():
    gate = Gate()
    async with batcher(gate) as queue:
        first = submit(queue, "a")
        await gate.busy()
        others = [submit(queue, letter) for letter in "bcdefg"]
        await queued(queue, 6)
        gate.open()
        assert await first == ["A"]
        assert [await task for task in others] == [[letter] for letter in "BCDEFG"]
    assert gate.batches == [["a"], list("bcdefg")]
    assert queue.stats().mean_batch_items == 3.5


async def test_a_lone_caller_is_served_at_once():
    gate = Gate()
    gate.open()
    async with batcher(gate) as queue:
        assert await queue.submit(["solo"], [4]) == ["SOLO"]


@given(st.lists(st.lists(st.text("xyz", min_size=1, max_size=9), max_size=6), max_size=12), st.integers(1, 40))
async def test_every_answer_belongs_to_its_own_input(requests: list[list[str]], budget: int):
    async with batcher(lambda items: [item[::-1] for item in items], max_tokens=budget, workers=2) as queue:
        answers = await asyncio.gather(*(queue.submit(items, [len(i) for i in items]) for items in requests))
    assert answers == [[item[::-1] for item in items] for items in requests]


async def test_one_poison_input_fails_alone():
    gate = Gate()
    async with batcher(gate) as queue:
        first = submit(queue, "a")
        await gate.busy()
        tasks = [submit(queue, item) for item in ("b", "poison", "c")]
        await queued(queue, 3)
        gate.open()
        assert await first == ["A"]
        assert await tasks[0] == ["B"]
        assert await tasks[2] == ["C"]
        with pytest.raises(InvalidRequest, match="poison"):
            await tasks[1]


async def test_an_unexpected_exception_reaches_its_caller_as_a_model_failure():
    def broken(items: Sequence[str]) -> list[str]:
        raise ZeroDivisionError

    async with batcher(broken) as queue:
        with pytest.raises(ModelFailed):
            await queue.submit(["x"], [1])


async def test_a_model_that_gives_too_few_results_is_a_failure_not_a_shift():
    async with batcher(lambda items: list(items)[1:]) as queue:
        with pytest.raises(ModelFailed):
            await queue.submit(["x", "y"], [1, 1])


async def test_a_query_does_not_wait_for_bulk_work_to_end():
    gate = Gate()
    async with batcher(gate, max_tokens=1) as queue:
        bulk = submit(queue, *"BCD", priority=Priority.BULK)
        await gate.busy()
        query = submit(queue, "a")
        async with asyncio.timeout(60):
            while len(gate.batches) < 2:
                await asyncio.sleep(0.001)
        assert gate.batches == [["B"], ["a"]]  # the bulk work is still held
        gate.open()
        assert await query == ["A"]
        assert await bulk == ["B", "C", "D"]


async def test_a_queue_full_of_bulk_work_refuses_no_query():
    gate = Gate()
    async with batcher(gate, max_queued=2) as queue:
        first = submit(queue, "a", priority=Priority.BULK)
        await gate.busy()
        waiting = submit(queue, "b", "c", priority=Priority.BULK)
        await queued(queue, 2)
        with pytest.raises(Overloaded):
            await queue.submit(["d"], [1], priority=Priority.BULK)
        query = submit(queue, "e")
        gate.open()
        assert await query == ["E"]
        await asyncio.gather(first, waiting)


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own here")
async def test_bulk_work_leaves_the_processor_to_queries():
    def niceness(items: Sequence[str]) -> list[int]:
        return [os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) for _ in items]

    async with batcher(niceness) as queue:
        (query,) = await queue.submit(["a"], [1])
        (bulk,) = await queue.submit(["b"], [1], priority=Priority.BULK)
    assert bulk == BULK_NICENESS > query


async def test_a_full_queue_refuses_and_says_when_to_come_back():
    gate = Gate()
    async with batcher(gate, max_queued=2) as queue:
        first = submit(queue, "a")
        await gate.busy()
        waiting = submit(queue, "b", "c")
        await queued(queue, 2)
        with pytest.raises(Overloaded) as refusal:
            await queue.submit(["d"], [1])
        assert 1 <= refusal.value.retry_after <= 60
        gate.open()
        assert await waiting == ["B", "C"]
        await first
        assert await queue.submit(["d"], [1]) == ["D"]


async def test_callers_who_have_gone_cost_nothing():
    gate = Gate()
    async with batcher(gate, max_items=4) as queue:
        first = submit(queue, "a")
        await gate.busy()
        gone = [submit(queue, "gone") for _ in range(300)]
        await queued(queue, 300)
        for task in gone:
            task.cancel()
        stays = submit(queue, "b")
        await asyncio.gather(*gone, return_exceptions=True)
        gate.open()
        assert await stays == ["B"]
        await first
    assert gate.batches == [["a"], ["b"]]


async def test_idle_workers_share_what_waits():
    gate = Gate()
    async with batcher(gate, workers=2) as queue:
        task = submit(queue, *("xx" for _ in range(10)))
        await gate.busy()
        await gate.busy()
        gate.open()
        assert await task == ["XX"] * 10
    assert [len(batch) for batch in gate.batches] == [5, 5]


async def test_closing_fails_whoever_waits():
    gate = Gate()
    async with batcher(gate) as queue:
        running = submit(queue, "a")
        await gate.busy()
        waiting = submit(queue, "b")
        await queued(queue, 1)
        queue.close()
        with pytest.raises(Overloaded):
            await waiting
        gate.open()
        assert await running == ["A"]
