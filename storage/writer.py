"""The one thread that writes: a queue of tasks, one transaction per task, its result to whoever waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

from rag.errors import StoreUnavailable
from storage.database import Cursor, Database

T = TypeVar("T")


def _nothing(_: object) -> None:
    """What most tasks publish."""


class WriteThread:
    """Runs tasks in the order in which they were submitted. An exception undoes its own transaction only."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queue: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._closing = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    def write(self, task: Callable[[Cursor], T], publish: Callable[[T], object] = _nothing) -> T:
        """Run `task` in a transaction, commit, then `publish` its result; blocks until all three are done.

        What `task` raises is raised here, and nothing was written.
        """

        def transact() -> T:
            cursor = self._database.begin()
            try:
                result = task(cursor)
                self._database.commit()
            except BaseException:
                self._database.rollback()
                raise
            publish(result)
            return result

        return self.between(transact)

    def between(self, action: Callable[[], T]) -> T:
        """Run `action` on the write thread between two transactions, when all that was committed is published."""
        future: Future[T] = Future()
        with self._closing:
            if self._closed:
                raise StoreUnavailable("The store is shutting down.")
            self._queue.put((action, future))
        return future.result()

    def close(self) -> None:
        """Finish what was submitted, then stop."""
        with self._closing:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            action, future = item
            try:
                result = action()
            except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
                future.set_exception(error)
            else:
                future.set_result(result)
