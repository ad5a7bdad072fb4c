"""The deployment that holds the reranking model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from deployments.device import assigned_device, assigned_threads
from rag.concurrency import BatchedReranker
from rag.models.registry import load_reranker
from rag.settings import ModelSettings
from rag.types import ModelInfo, Scores


class RerankerDeployment:
    """One replica: one model, one queue."""

    def __init__(self, settings: ModelSettings) -> None:
        model = load_reranker(settings, device=assigned_device(), threads=assigned_threads())
        self._reranker = BatchedReranker(model, settings)

    async def info(self) -> ModelInfo:
        return await self._reranker.info()

    async def rerank(self, query: str, passages: Sequence[str], *, max_tokens_per_passage: int | None = None) -> Scores:
        return await self._reranker.rerank(query, passages, max_tokens_per_passage=max_tokens_per_passage)

    async def stats(self) -> dict[str, float]:
        return await self._reranker.stats()

    async def check_health(self) -> None:
        """A replica that cannot rerank is replaced."""
        await asyncio.wait_for(self.rerank("health", ["health"]), 30)
