"""When vector stores were last used, until the next write puts it on record: a search must not cost a commit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

from rag.types import VectorStoreRecord


class Activity:
    """Unix seconds by vector store, for those used since the start."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._latest: dict[str, int] = {}
        self._pending: dict[str, int] = {}

    def touch(self, store_id: str) -> None:
        """Used now."""
        with self._lock:
            self._latest[store_id] = self._pending[store_id] = int(self._clock())

    def seen(self, record: VectorStoreRecord) -> VectorStoreRecord:
        """The record with the newest time."""
        with self._lock:
            latest = self._latest.get(record.id, 0)
        return replace(record, last_active_at=max(record.last_active_at, latest))

    def pending(self) -> dict[str, int]:
        """What is to be put on record."""
        with self._lock:
            return dict(self._pending)

    def recorded(self, times: Mapping[str, int]) -> None:
        """What is on record now is no longer pending."""
        with self._lock:
            for store_id, when in times.items():
                if self._pending.get(store_id) == when:
                    del self._pending[store_id]
