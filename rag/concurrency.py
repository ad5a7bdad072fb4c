"""The asynchronous edge: a synchronous model behind the protocol that the pipelines speak, with batching between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from rag.batching import Batcher
from rag.errors import InvalidRequest
from rag.models.base import EmbeddingModel, RerankModel, TokenIds, TokenPair
from rag.settings import ModelSettings
from rag.types import Embeddings, Float32, Kind, ModelInfo, Priority, Scores, SparseVector

R = TypeVar("R")

# Tokenizing so few characters costs less than handing them to a thread.
INLINE_CHARACTERS = 2_000


class BatchedEmbedder:
    """`rag.protocols.Embedder` over a model in this process."""

    def __init__(self, model: EmbeddingModel, settings: ModelSettings) -> None:
        self._model = model
        self._batcher: Batcher[TokenIds, tuple[Float32, SparseVector | None]] = Batcher(
            self._encode,
            max_tokens=settings.max_batch_tokens or model.max_batch_tokens,
            max_items=settings.max_batch_items,
            max_queued=settings.max_queued,
            workers=model.workers,
            name="embedder",
        )
        self._tokenizing = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")

    async def info(self) -> ModelInfo:
        return self._model.info

    async def embed(
        self,
        texts: Sequence[str],
        *,
        kind: Kind = Kind.PASSAGE,
        priority: Priority = Priority.INTERACTIVE,
        truncate: bool = False,
    ) -> Embeddings:
        self._batcher.admit(priority)  # before tokenizing, so that a refusal costs nothing
        tokenize = self._model.tokenize
        sequences = await _in_thread_if_long(self._tokenizing, texts, lambda: tokenize(texts, kind))
        counts = np.fromiter(map(len, sequences), np.int32, len(sequences))
        for index in np.flatnonzero(counts > self._model.info.max_tokens):
            if not truncate:
                raise self._too_long(int(index), int(counts[index]), len(texts))
            sequences[index] = self._model.truncate(sequences[index])
        rows = await self._batcher.submit(sequences, [len(ids) for ids in sequences], priority=priority)
        if not rows:
            return Embeddings(np.empty((0, self._model.info.dimension), np.float32), counts)
        sparse = tuple(weights for _, weights in rows if weights is not None)
        return Embeddings(np.stack([dense for dense, _ in rows]), counts, sparse or None)

    def _encode(self, batch: Sequence[TokenIds]) -> list[tuple[Float32, SparseVector | None]]:
        found = self._model.encode(batch)
        sparse: Sequence[SparseVector | None] = found.sparse or [None] * len(batch)
        return list(zip(found.dense, sparse, strict=True))

    def _too_long(self, index: int, tokens: int, texts: int) -> InvalidRequest:
        param = "input" if texts == 1 else f"input[{index}]"
        info = self._model.info
        return InvalidRequest(
            f"'{param}' has {tokens} tokens, but {info.id} reads at most {info.max_tokens}. "
            "Shorten it, or send truncate: true to have it cut.",
            param,
            "string_above_max_length",
        )

    async def stats(self) -> dict[str, float]:
        return self._batcher.stats().as_numbers()

    def close(self) -> None:
        self._batcher.close()
        self._tokenizing.shutdown(wait=False)


class BatchedReranker:
    """`rag.protocols.Reranker` over a model in this process."""

    def __init__(self, model: RerankModel, settings: ModelSettings) -> None:
        self._model = model
        self._batcher: Batcher[TokenPair, float] = Batcher(
            self._score,
            max_tokens=settings.max_batch_tokens or model.max_batch_tokens,
            max_items=settings.max_batch_items,
            max_queued=settings.max_queued,
            workers=model.workers,
            name="reranker",
        )
        self._tokenizing = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")

    async def info(self) -> ModelInfo:
        return self._model.info

    async def rerank(self, query: str, passages: Sequence[str], *, max_tokens_per_passage: int | None = None) -> Scores:
        self._batcher.admit()
        tokenize = self._model.tokenize
        pairs = await _in_thread_if_long(
            self._tokenizing, [query, *passages], lambda: tokenize(query, passages, max_tokens_per_passage)
        )
        lengths = [len(pair.ids) for pair in pairs]
        values = await self._batcher.submit(pairs, lengths)
        return Scores(np.array(values, np.float32), sum(lengths))

    def _score(self, batch: Sequence[TokenPair]) -> list[float]:
        scores: list[float] = self._model.score(batch).tolist()
        return scores

    async def stats(self) -> dict[str, float]:
        return self._batcher.stats().as_numbers()

    def close(self) -> None:
        self._batcher.close()
        self._tokenizing.shutdown(wait=False)


async def _in_thread_if_long(pool: ThreadPoolExecutor, texts: Sequence[str], work: Callable[[], R]) -> R:
    if sum(map(len, texts)) <= INLINE_CHARACTERS:
        return work()
    return await asyncio.get_running_loop().run_in_executor(pool, work)
