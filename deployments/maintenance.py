"""Care for a data directory while no service uses it."""

from __future__ import annotations

import asyncio

from deployments.composition import make_blobs
from deployments.settings import Settings
from rag.errors import RagError
from storage import compaction
from storage.layout import ShardLayout
from storage.local import LocalStores


def verify(settings: Settings) -> list[str]:
    """A sentence for everything that exists on one side only.

    Raises:
        RagError: there is no database.
        StoreLocked: the service is running.
        StoreDamaged: the database cannot be opened.
    """
    stores = opened(settings)
    try:
        return stores.verify(asyncio.run(make_blobs(settings).ids()))
    finally:
        stores.close()


def compact(settings: Settings) -> tuple[int, int]:
    """The database's bytes before and after; raises as `verify` does."""
    return compaction.compact(_layout(settings), threads=settings.storage.threads or 1)


def opened(settings: Settings) -> LocalStores:
    """The stores of a data directory that is there, sound, and used by nobody; to be closed."""
    careful = {"lock_wait_s": 0.0, "open_from_checkpoint": False}
    return LocalStores(_layout(settings).root, settings.storage.model_copy(update=careful))


def _layout(settings: Settings) -> ShardLayout:
    layout = ShardLayout(settings.data_dir)
    if not layout.database.exists():
        raise RagError(f"There is no {layout.database}: name the data directory of the service with --data-dir.")
    return layout
