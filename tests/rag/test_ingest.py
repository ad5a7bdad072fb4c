from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rag.errors import ModelFailed, Overloaded, StoreUnavailable, UnsupportedFile
from rag.ingest import GROUP_CHUNKS, GROUPS_IN_FLIGHT, LONGEST_PAUSE_S, PATIENCE_S, IngestPipeline
from rag.types import ChunkingStrategy, Embeddings, IngestJob, Kind, Priority, Section, SparseVector
from tests.doubles import FolderBlobs

JOB = IngestJob("vs_1", "file-1", "tides.txt", ChunkingStrategy(100, 0))
LONG = "".join(f"word{number} " for number in range(100 * 300))  # 300 chunks, 5 groups


class Words:
    """A word is a token."""

    max_tokens = 10_000
    special_tokens = 2

    def count(self, text: str) -> int:
        return len(text.split())

    def spans(self, text: str) -> np.ndarray:
        return np.array([found.span() for found in re.finditer(r"\S+", text)], np.int32).reshape(-1, 2)


class ScriptedReader:
    def __init__(self, text: str, fails: Exception | None = None) -> None:
        self.text = text
        self.fails = fails
        self.asked: list[tuple[Path, str]] = []

    async def read(self, path: Path, filename: str) -> list[Section]:
        self.asked.append((path, filename))
        if self.fails is not None:
            raise self.fails
        return [Section(self.text)]


class ScriptedEmbedder:
    """The first word's number is the vector. `script` may raise or wait before a call is answered."""

    def __init__(self, script: Callable[[list[str]], object] | None = None, *, sparse: bool = False) -> None:
        self.script = script
        self.sparse = sparse
        self.calls: list[tuple[Kind, Priority, bool, int]] = []
        self.running = self.most = self.ended = 0

    async def embed(self, texts, *, kind=Kind.QUERY, priority=Priority.INTERACTIVE, truncate=False) -> Embeddings:
        self.calls.append((kind, priority, truncate, len(texts)))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            if self.script is not None:
                await self.script(texts)
            await asyncio.sleep(0)
        finally:
            self.running -= 1
            self.ended += 1
        numbers = np.array([int(text.split()[0].removeprefix("word")) for text in texts], np.float32)
        vectors = [SparseVector(np.array([int(number)], np.int32), np.ones(1, np.float32)) for number in numbers]
        counts = np.array([len(text.split()) + 2 for text in texts], np.int32)
        return Embeddings(numbers.reshape(-1, 1), counts, tuple(vectors) if self.sparse else None)


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def pipeline(tmp_path, pauses):
    (tmp_path / "file-1").write_bytes(b"-")

    def made(embedder: ScriptedEmbedder, reader: ScriptedReader | None = None) -> IngestPipeline:
        async def pause(seconds: float) -> None:
            pauses.append(seconds)
            await asyncio.sleep(0)

        return IngestPipeline(reader or ScriptedReader(LONG), FolderBlobs(tmp_path), Words(), embedder, pause=pause)

    return made


async def test_every_chunk_gets_its_own_vector_though_the_groups_end_in_any_order(pipeline):
    async def the_first_waits(texts: list[str]) -> None:
        if texts[0].startswith("word0 "):
            for _ in range(50):
                await asyncio.sleep(0)

    embedder = ScriptedEmbedder(the_first_waits, sparse=True)
    file = await pipeline(embedder).ingest(JOB)
    assert len(file.chunks) == len(file.embeddings) == 300
    assert file.embeddings.dense.ravel().tolist() == [100.0 * number for number in range(300)]
    assert [int(vector.indices[0]) for vector in file.embeddings.sparse] == [100 * number for number in range(300)]
    assert file.embeddings.token_counts.tolist() == [102] * 300
    assert [call[3] for call in embedder.calls] == [GROUP_CHUNKS] * 4 + [300 - 4 * GROUP_CHUNKS]
    assert embedder.most == GROUPS_IN_FLIGHT


async def test_chunks_are_passages_that_let_queries_go_first_and_are_never_cut(pipeline):
    embedder = ScriptedEmbedder()
    file = await pipeline(embedder, ScriptedReader("word7 is all")).ingest(JOB)
    assert embedder.calls == [(Kind.PASSAGE, Priority.BULK, False, 1)]
    assert file.embeddings.sparse is None


async def test_each_stage_is_timed_and_the_reader_gets_the_blob_and_the_name(pipeline, tmp_path):
    reader = ScriptedReader("word1 here")
    file = await pipeline(ScriptedEmbedder(), reader).ingest(JOB)
    assert list(file.timings) == ["read", "chunk", "embed"]
    assert all(seconds >= 0 for seconds in file.timings.values())
    assert reader.asked == [(tmp_path / "file-1", "tides.txt")]


async def test_a_file_without_chunks_is_refused_and_nothing_is_embedded(pipeline):
    embedder = ScriptedEmbedder()
    with pytest.raises(UnsupportedFile, match="no text"):
        await pipeline(embedder, ScriptedReader(" \n ")).ingest(JOB)
    assert embedder.calls == []


async def test_what_the_reader_refuses_is_passed_on(pipeline):
    refused = UnsupportedFile("The PDF is locked.")
    with pytest.raises(UnsupportedFile) as raised:
        await pipeline(ScriptedEmbedder(), ScriptedReader("", fails=refused)).ingest(JOB)
    assert raised.value is refused


async def test_overload_is_waited_out_with_growing_pauses(pipeline, pauses):
    answers: list[Exception] = [Overloaded("busy", 1), StoreUnavailable("restarting", 3), *[Overloaded("busy", 1)] * 4]

    async def overloaded(texts: list[str]) -> None:
        if answers:
            raise answers.pop(0)

    file = await pipeline(ScriptedEmbedder(overloaded), ScriptedReader("word5 waits")).ingest(JOB)
    assert file.embeddings.dense.tolist() == [[5.0]]
    assert pauses == [1.0, 3.0, 6.0, 12.0, 24.0, LONGEST_PAUSE_S]


async def test_patience_ends_and_the_overload_is_passed_on(pipeline, pauses):
    async def always(texts: list[str]) -> None:
        raise Overloaded("busy", 5)

    with pytest.raises(Overloaded):
        await pipeline(ScriptedEmbedder(always), ScriptedReader("word5 waits")).ingest(JOB)
    assert PATIENCE_S <= sum(pauses) < PATIENCE_S + LONGEST_PAUSE_S


async def test_one_group_that_fails_ends_the_others_and_shows_as_itself(pipeline):
    broken = ModelFailed("not finite")

    async def second_fails(texts: list[str]) -> None:
        if texts[0].startswith(f"word{100 * GROUP_CHUNKS} "):
            raise broken
        await asyncio.Event().wait()

    embedder = ScriptedEmbedder(second_fails)
    with pytest.raises(ModelFailed) as raised:
        await pipeline(embedder).ingest(JOB)
    assert raised.value is broken
    assert len(embedder.calls) == embedder.ended
    assert embedder.running == 0


async def test_a_cancelled_ingestion_leaves_no_group_behind(pipeline):
    begun = asyncio.Event()

    async def hang(texts: list[str]) -> None:
        begun.set()
        await asyncio.Event().wait()

    embedder = ScriptedEmbedder(hang)
    task = asyncio.ensure_future(pipeline(embedder).ingest(JOB))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert embedder.running == 0
    assert len(asyncio.all_tasks()) == 1
