"""Calls that share a hop: while some are under way, those that wait travel together.

A hop between processes costs some milliseconds of processor time, however little it carries. Under load this
divides that cost by the number of callers; a lone caller is sent at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rag.errors import ModelFailed

T = TypeVar("T")
R = TypeVar("R")


@dataclass(slots=True, eq=False)
class _Call(Generic[T, R]):
    item: T
    weight: int
    future: asyncio.Future[R]


class Coalescer(Generic[T, R]):
    """Groups calls of one event loop.

    A group leaves at once while fewer than `eager` are under way; else when it weighs `full`, when another group
    comes back, or after `patience_s`, whichever is first: so a slow replica never holds back a free one.
    """

    def __init__(
        self,
        send: Callable[[Sequence[T]], Awaitable[Sequence[R | BaseException]]],
        *,
        eager: int = 2,
        full: int = 64,
        patience_s: float = 0.004,
    ) -> None:
        """`send` gives one result or exception per item, in order."""
        self._send = send
        self._eager = eager
        self._full = full
        self._patience_s = patience_s
        self._waiting: list[_Call[T, R]] = []
        self._weight = 0
        self._timer: asyncio.TimerHandle | None = None
        self._under_way: set[asyncio.Task[None]] = set()

    async def call(self, item: T, *, weight: int = 1) -> R:
        """The result of `item`, or the exception that `send` gave or raised for it."""
        loop = asyncio.get_running_loop()
        call: _Call[T, R] = _Call(item, weight, loop.create_future())
        self._waiting.append(call)
        self._weight += weight
        if len(self._under_way) < self._eager or self._weight >= self._full:
            self._leave()
        elif self._timer is None:
            self._timer = loop.call_later(self._patience_s, self._leave)
        return await call.future

    def _leave(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        group = [call for call in self._waiting if not call.future.done()]  # the others have gone
        self._waiting.clear()
        self._weight = 0
        if not group:
            return
        task = asyncio.get_running_loop().create_task(self._travel(group))
        self._under_way.add(task)
        task.add_done_callback(self._came_back)
        for call in group:
            call.future.add_done_callback(lambda _: _cancel_if_deserted(task, group))

    def _came_back(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if self._waiting:
            self._leave()

    async def _travel(self, group: Sequence[_Call[T, R]]) -> None:
        try:
            results = await self._send([call.item for call in group])
        except Exception as error:  # noqa: BLE001 - it is handed to every call of the group
            results = [error] * len(group)
        if len(results) != len(group):
            results = [ModelFailed("A batch came back incomplete.")] * len(group)
        for call, result in zip(group, results, strict=True):
            if call.future.done():
                continue
            if isinstance(result, BaseException):
                call.future.set_exception(result)
            else:
                call.future.set_result(result)


def _cancel_if_deserted(task: asyncio.Task[None], group: Sequence[_Call[T, R]]) -> None:
    """Work that nobody awaits any more is given up on the other side, too."""
    if not task.done() and all(call.future.cancelled() for call in group):
        task.cancel()
