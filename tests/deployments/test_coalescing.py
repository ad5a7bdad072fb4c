"""Calls that share a hop: alone at once, together under load, each with its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from deployments.coalescing import Coalescer
from rag.errors import ModelFailed, NotFound


class Wire:
    """The other side of a hop, which answers when it is told to."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.cancelled = 0
        self._gate = asyncio.Event()

    def open(self) -> None:
        self._gate.set()

    async def __call__(self, items: Sequence[int]) -> list[int | BaseException]:
        self.groups.append(list(items))
        try:
            await self._gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return [NotFound("odd") if item < 0 else item * 10 for item in items]


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_lone_call_leaves_at_once():
    wire = Wire()
    wire.open()
    assert await Coalescer(wire).call(1) == 10
    assert wire.groups == [[1]]


async def test_calls_that_find_others_under_way_travel_together_and_get_their_own_answers():
    wire = Wire()
    calls = Coalescer(wire, eager=1, patience_s=60)
    tasks = [asyncio.create_task(calls.call(item)) for item in range(6)]
    await turn()
    assert wire.groups == [[0]]
    wire.open()
    assert await asyncio.gather(*tasks) == [0, 10, 20, 30, 40, 50]
    assert wire.groups == [[0], [1, 2, 3, 4, 5]]


async def test_a_full_group_does_not_wait():
    wire = Wire()
    calls = Coalescer(wire, eager=1, full=4, patience_s=60)
    tasks = [asyncio.create_task(calls.call(item, weight=2)) for item in range(5)]
    await turn()
    assert wire.groups == [[0], [1, 2], [3, 4]]
    wire.open()
    await asyncio.gather(*tasks)


async def test_nobody_waits_longer_than_the_patience_for_a_slow_replica():
    wire = Wire()
    calls = Coalescer(wire, eager=1, patience_s=0.001)
    tasks = [asyncio.create_task(calls.call(item)) for item in range(2)]
    async with asyncio.timeout(10):
        while len(wire.groups) < 2:
            await asyncio.sleep(0.001)
    wire.open()
    assert await asyncio.gather(*tasks) == [0, 10]


async def test_an_error_reaches_only_the_call_that_it_belongs_to():
    wire = Wire()
    calls = Coalescer(wire, eager=1, patience_s=60)
    tasks = [asyncio.create_task(calls.call(item)) for item in (1, 2, -3)]
    await turn()
    wire.open()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert results[:2] == [10, 20]
    assert isinstance(results[2], NotFound)


async def test_a_failed_hop_reaches_everyone_on_it():
    async def broken(items: Sequence[int]) -> list[int | BaseException]:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        await Coalescer(broken).call(1)


async def test_an_incomplete_answer_is_an_error_not_a_shift():
    async def short(items: Sequence[int]) -> list[int | BaseException]:
        return []

    with pytest.raises(ModelFailed):
        await Coalescer(short).call(1)


async def test_work_that_nobody_awaits_is_given_up_on_the_other_side():
    wire = Wire()
    calls = Coalescer(wire, eager=1, patience_s=60)
    gone = asyncio.create_task(calls.call(1))
    await turn()
    waiting = asyncio.create_task(calls.call(2))
    await turn()
    gone.cancel()
    await turn()
    assert wire.cancelled == 1
    wire.open()
    assert await waiting == 20
