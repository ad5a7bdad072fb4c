"""The deployment that owns the data: exactly one replica, which waits for its predecessor to leave."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ray.serve.handle import DeploymentHandle

from deployments.calls import SearchCall, answer_each
from deployments.clients import RemoteIngestor
from deployments.composition import make_blobs
from deployments.device import assigned_threads
from deployments.settings import Settings
from rag.errors import RagError
from rag.types import Hit
from storage.concurrency import AsyncStores
from storage.local import LocalStores


class StoreDeployment(AsyncStores):
    """The store behind a handle. Ray starts a new replica before the old one has gone; the directory's lock keeps
    the new constructor waiting until the data is free."""

    def __init__(self, settings: Settings, ingestor: DeploymentHandle) -> None:
        storage = settings.storage
        threads = storage.threads or assigned_threads()
        stores = LocalStores(settings.data_dir, storage, threads=threads, quotas=settings.quotas)
        super().__init__(
            stores,
            RemoteIngestor(ingestor),
            make_blobs(settings),
            readers=storage.readers,
            ingestion=settings.ingestion,
            batches=settings.file_batch_params,
        )
        self._started = asyncio.get_running_loop().create_task(self.start())

    async def search_all(self, calls: Sequence[SearchCall]) -> list[list[Hit] | RagError]:
        """Searches of several clients that shared a hop."""
        return await answer_each(
            calls,
            lambda call: self.search(
                call.owner, call.store_id, call.queries, model=call.model, limit=call.limit, where=call.where
            ),
        )

    async def check_health(self) -> None:
        """Unhealthy where the jobs could not be taken up."""
        if self._started.done():
            self._started.result()

    async def __del__(self) -> None:
        await self.close()
