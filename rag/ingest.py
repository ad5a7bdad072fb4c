"""One file to embedded chunks: read, cut, embed."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from rag.chunking import split
from rag.errors import Retryable, UnsupportedFile
from rag.models.base import TextTokenizer
from rag.protocols import Blobs, Embedder
from rag.types import Chunk, Embeddings, IngestedPart, IngestJob, Kind, Priority, Section, text_bytes

GROUP_CHUNKS = 64  # embedded in one call
PART_GROUPS = 8  # given on together: what a fault costs at most
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

    async def ingest(self, job: IngestJob) -> AsyncGenerator[IngestedPart, None]:
        timings: dict[str, float] = {}
        with _timed(timings, "read"):
            sections = await self._reader.read(self._blobs.path(job.file_id), job.filename)
        with _timed(timings, "chunk"):
            chunks = await asyncio.to_thread(split, sections, job.chunking, self._tokenizer)
        if not chunks:
            raise UnsupportedFile("The file has no text in it.")
        _check_room(chunks, job)
        plan = _plan(chunks)
        missing = chunks[job.kept :] if job.plan == plan and job.kept < len(chunks) else chunks
        async with aclosing(self._embedded(missing, timings)) as parts:
            async for part in parts:
                yield IngestedPart(part.chunks, part.embeddings, len(chunks), plan, dict(timings))
                timings.clear()

    async def _embedded(self, chunks: Sequence[Chunk], timings: dict[str, float]) -> AsyncGenerator[_Embedded, None]:
        """The chunks a part at a time. Embedding goes on while the caller keeps a part."""
        groups = [chunks[start : start + GROUP_CHUNKS] for start in range(0, len(chunks), GROUP_CHUNKS)]
        turn = asyncio.Semaphore(GROUPS_IN_FLIGHT)

        async def embed(group: Sequence[Chunk]) -> Embeddings:
            async with turn:
                return await self._embed_patiently([chunk.text for chunk in group])

        running = [asyncio.ensure_future(embed(group)) for group in groups]
        try:
            for first in range(0, len(groups), PART_GROUPS):
                with _timed(timings, "embed"):
                    embeddings = _joined(await asyncio.gather(*running[first : first + PART_GROUPS]))
                start = first * GROUP_CHUNKS
                yield _Embedded(tuple(chunks[start : start + len(embeddings)]), embeddings)
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


@dataclass(frozen=True, slots=True)
class _Embedded:
    chunks: tuple[Chunk, ...]
    embeddings: Embeddings


def _plan(chunks: Sequence[Chunk]) -> str:
    """The same for the same cuts through the same text."""
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(f"{chunk.start} {chunk.end} {chunk.text}".encode())
    return digest.hexdigest()


def _check_room(chunks: Sequence[Chunk], job: IngestJob) -> None:
    if job.room is None:
        return
    size = text_bytes(chunks)
    if size > job.room:
        raise UnsupportedFile(
            f"The file would take {size} bytes of text, and the quota has {max(0, job.room)} left. Delete files from "
            "vector stores, or raise quotas.max_store_bytes."
        )


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
