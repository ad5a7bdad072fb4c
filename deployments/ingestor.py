"""The deployment that reads, cuts and embeds files."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from ray.serve.handle import DeploymentHandle

from deployments.clients import RemoteEmbedder
from deployments.composition import make_blobs
from deployments.settings import Settings
from rag.ingest import IngestPipeline
from rag.models.registry import load_tokenizer
from rag.reader import Reader
from rag.types import IngestedPart, IngestJob


class IngestorDeployment:
    """One replica: a few reading processes, no state."""

    def __init__(self, settings: Settings, embedder: DeploymentHandle) -> None:
        self._reader = Reader(settings.reader)
        self._pipeline = IngestPipeline(
            self._reader,
            make_blobs(settings),
            load_tokenizer(settings.embedder),
            RemoteEmbedder(embedder),
        )

    async def ingest(self, job: IngestJob) -> AsyncGenerator[IngestedPart, None]:
        async with aclosing(self._pipeline.ingest(job)) as parts:
            async for part in parts:
                yield part

    async def __del__(self) -> None:
        await self._reader.close()
