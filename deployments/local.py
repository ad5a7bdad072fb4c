"""The composition in one process, without Ray: for notebooks, evaluation and tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from deployments.composition import make_blobs, make_service
from deployments.settings import Settings
from rag.concurrency import BatchedEmbedder, BatchedReranker
from rag.ingest import IngestPipeline
from rag.models.registry import load_embedder, load_reranker, load_tokenizer
from rag.reader import Reader
from rag.service import RagService
from storage.concurrency import AsyncStores
from storage.local import LocalStores


@asynccontextmanager
async def local_service(settings: Settings) -> AsyncIterator[RagService]:
    """The whole service for as long as the block lasts; it owns the data directory meanwhile."""
    async with AsyncExitStack() as stack:
        embedder = BatchedEmbedder(load_embedder(settings.embedder), settings.embedder)
        stack.callback(embedder.close)
        reranker = None
        if settings.reranker is not None:
            reranker = BatchedReranker(load_reranker(settings.reranker), settings.reranker)
            stack.callback(reranker.close)
        reader = Reader(settings.reader)
        stack.push_async_callback(reader.close)
        blobs = make_blobs(settings)
        pipeline = IngestPipeline(reader, blobs, load_tokenizer(settings.embedder), embedder)
        stores = AsyncStores(
            LocalStores(settings.data_dir, settings.storage, quotas=settings.quotas),
            pipeline,
            blobs,
            readers=settings.storage.readers,
            ingestion=settings.ingestion,
            batches=settings.file_batch_params,
        )
        stack.push_async_callback(stores.close)
        await stores.start()
        yield make_service(settings, embedder=embedder, reranker=reranker, stores=stores)
