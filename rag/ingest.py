"""One file to embedded chunks: read, cut, embed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np

from rag.chunking import split
from rag.errors import Retryable, UnsupportedFile
from rag.models.base import TextTokenizer
from rag.protocols import Blobs, Embedder
from rag.types import Chunk, Embeddings, IngestedFile, IngestJob, Kind, Priority, Section

GROUP_CHUNKS = 64  # embedded in one call
GROUPS_IN_FLIGHT = 3  # enough that the embedder never idles, few enough that queries are not starved
LONGEST_PAUSE_S = 30.0
PATIENCE_S = 900.0  # with an embedder that is overloaded or restarting


class SectionReader(Protocol):
    """Documents to text."""

    async def read(self, path: Path, filename: str) -> list[Section]: ...


class IngestPipeline:
    """`rag.protocols.Ingestor` in this process."""

    def __init__(
        self,
        reader: SectionReader,
        blobs: Blobs,
        tokenizer: TextTokenizer,
        embedder: Embedder,
        *,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._reader = reader
        self._blobs = blobs
        self._tokenizer = tokenizer
        self._embedder = embedder
        self._pause = pause

    async def ingest(self, job: IngestJob) -> IngestedFile:
        timings: dict[str, float] = {}
        with _timed(timings, "read"):
            sections = await self._reader.read(self._blobs.path(job.file_id), job.filename)
        with _timed(timings, "chunk"):
            chunks = await asyncio.to_thread(split, sections, job.chunking, self._tokenizer)
        if not chunks:
            raise UnsupportedFile("The file has no text in it.")
        with _timed(timings, "embed"):
            embeddings = await self._embed(chunks)
        return IngestedFile(tuple(chunks), embeddings, timings)

    async def _embed(self, chunks: Sequence[Chunk]) -> Embeddings:
        groups = [chunks[start : start + GROUP_CHUNKS] for start in range(0, len(chunks), GROUP_CHUNKS)]
        turn = asyncio.Semaphore(GROUPS_IN_FLIGHT)

        async def embed(group: Sequence[Chunk]) -> Embeddings:
            async with turn:
                return await self._embed_patiently([chunk.text for chunk in group])

        running = [asyncio.ensure_future(embed(group)) for group in groups]
        try:
            return _joined(await asyncio.gather(*running))
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)  # nothing of it goes on behind the caller's back

    async def _embed_patiently(self, texts: Sequence[str]) -> Embeddings:
        """Overload is waited out: it is the embedder's way to say that queries come first."""
        waited = 0.0
        pause = 0.0
        while True:
            try:
                return await self._embedder.embed(texts, kind=Kind.PASSAGE, priority=Priority.BULK)
            except Retryable as error:
                if waited >= PATIENCE_S:
                    raise
                pause = min(LONGEST_PAUSE_S, max(2 * pause, float(error.retry_after)))
                waited += pause
                await self._pause(pause)


def _joined(parts: Sequence[Embeddings]) -> Embeddings:
    sparse = [vector for part in parts if part.sparse is not None for vector in part.sparse]
    return Embeddings(
        np.concatenate([part.dense for part in parts]),
        np.concatenate([part.token_counts for part in parts]),
        tuple(sparse) or None,
    )


@contextmanager
def _timed(timings: dict[str, float], stage: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    timings[stage] = time.perf_counter() - started
