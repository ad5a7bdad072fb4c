"""Care for a data directory while no service uses it."""

from __future__ import annotations

import asyncio

from deployments.composition import make_blobs
from deployments.settings import Settings
from storage import compaction
from storage.layout import ShardLayout
from storage.local import LocalStores


def verify(settings: Settings) -> list[str]:
    """A sentence for everything that exists on one side only.

    Raises:
        StoreLocked: the service is running.
        StoreDamaged: the database cannot be opened.
    """
    lying = asyncio.run(make_blobs(settings).ids())
    stores = LocalStores(settings.data_dir, settings.storage.model_copy(update={"lock_wait_s": 0.0}))
    try:
        return stores.verify(lying)
    finally:
        stores.close()


def compact(settings: Settings) -> tuple[int, int]:
    """The database's bytes before and after; raises as `verify` does."""
    return compaction.compact(ShardLayout(settings.data_dir), threads=settings.storage.threads or 1)
