"""The deployment that holds the embedding model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from deployments.calls import EmbedCall, answer_each
from deployments.device import assigned_device, assigned_threads
from rag.concurrency import BatchedEmbedder
from rag.errors import RagError
from rag.models.registry import load_embedder
from rag.settings import ModelSettings
from rag.types import Embeddings, Kind, ModelInfo, Priority


class EmbedderDeployment:
    """One replica: one model, one queue."""

    def __init__(self, settings: ModelSettings) -> None:
        model = load_embedder(settings, device=assigned_device(), threads=assigned_threads())
        self._embedder = BatchedEmbedder(model, settings)

    async def info(self) -> ModelInfo:
        return await self._embedder.info()

    async def embed(self, texts: Sequence[str], kind: Kind, priority: Priority, truncate: bool) -> Embeddings:
        return await self._embedder.embed(texts, kind=kind, priority=priority, truncate=truncate)

    async def embed_all(self, calls: Sequence[EmbedCall]) -> list[Embeddings | RagError]:
        """Calls of several clients that shared a hop."""
        return await answer_each(calls, lambda call: self.embed(call.texts, call.kind, call.priority, call.truncate))

    async def stats(self) -> dict[str, float]:
        return await self._embedder.stats()

    async def check_health(self) -> None:
        """A replica that cannot embed is replaced."""
        await asyncio.wait_for(self.embed(["health"], Kind.PASSAGE, Priority.INTERACTIVE, False), 30)
