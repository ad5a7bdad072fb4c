from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rag.errors import ModelFailed, Overloaded, StoreUnavailable, UnsupportedFile
from rag.ingest import GROUP_CHUNKS, GROUPS_IN_FLIGHT, LONGEST_PAUSE_S, PART_GROUPS, PATIENCE_S, IngestPipeline
from rag.types import ChunkingStrategy, Embeddings, IngestedPart, IngestJob, Kind, Priority, Section, SparseVector
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


async def parts_of(pipeline: IngestPipeline, job: IngestJob = JOB) -> list[IngestedPart]:
    return [part async for part in pipeline.ingest(job)]


async def whole(pipeline: IngestPipeline) -> IngestedPart:
    (part,) = await parts_of(pipeline)
    assert part.is_first
    assert part.is_last
    return part


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
    file = await whole(pipeline(embedder))
    assert len(file.chunks) == len(file.embeddings) == 300
    assert file.embeddings.dense.ravel().tolist() == [100.0 * number for number in range(300)]
    assert [int(vector.indices[0]) for vector in file.embeddings.sparse] == [100 * number for number in range(300)]
    assert file.embeddings.token_counts.tolist() == [102] * 300
    assert [call[3] for call in embedder.calls] == [GROUP_CHUNKS] * 4 + [300 - 4 * GROUP_CHUNKS]
    assert embedder.most == GROUPS_IN_FLIGHT


async def test_chunks_are_passages_that_let_queries_go_first_and_are_never_cut(pipeline):
    embedder = ScriptedEmbedder()
    file = await whole(pipeline(embedder, ScriptedReader("word7 is all")))
    assert embedder.calls == [(Kind.PASSAGE, Priority.BULK, False, 1)]
    assert file.embeddings.sparse is None


async def test_each_stage_is_timed_and_the_reader_gets_the_blob_and_the_name(pipeline, tmp_path):
    reader = ScriptedReader("word1 here")
    file = await whole(pipeline(ScriptedEmbedder(), reader))
    assert list(file.timings) == ["read", "chunk", "embed"]
    assert all(seconds >= 0 for seconds in file.timings.values())
    assert reader.asked == [(tmp_path / "file-1", "tides.txt")]


async def test_a_file_without_chunks_is_refused_and_nothing_is_embedded(pipeline):
    embedder = ScriptedEmbedder()
    with pytest.raises(UnsupportedFile, match="no text"):
        await whole(pipeline(embedder, ScriptedReader(" \n ")))
    assert embedder.calls == []


async def test_what_the_reader_refuses_is_passed_on(pipeline):
    refused = UnsupportedFile("The PDF is locked.")
    with pytest.raises(UnsupportedFile) as raised:
        await whole(pipeline(ScriptedEmbedder(), ScriptedReader("", fails=refused)))
    assert raised.value is refused


async def test_overload_is_waited_out_with_growing_pauses(pipeline, pauses):
    answers: list[Exception] = [Overloaded("busy", 1), StoreUnavailable("restarting", 3), *[Overloaded("busy", 1)] * 4]

    async def overloaded(texts: list[str]) -> None:
        if answers:
            raise answers.pop(0)

    file = await whole(pipeline(ScriptedEmbedder(overloaded), ScriptedReader("word5 waits")))
    assert file.embeddings.dense.tolist() == [[5.0]]
    assert pauses == [1.0, 3.0, 6.0, 12.0, 24.0, LONGEST_PAUSE_S]


async def test_patience_ends_and_the_overload_is_passed_on(pipeline, pauses):
    async def always(texts: list[str]) -> None:
        raise Overloaded("busy", 5)

    with pytest.raises(Overloaded):
        await whole(pipeline(ScriptedEmbedder(always), ScriptedReader("word5 waits")))
    assert PATIENCE_S <= sum(pauses) < PATIENCE_S + LONGEST_PAUSE_S


async def test_one_group_that_fails_ends_the_others_and_shows_as_itself(pipeline):
    broken = ModelFailed("not finite")

    async def second_fails(texts: list[str]) -> None:
        if texts[0].startswith(f"word{100 * GROUP_CHUNKS} "):
            raise broken
        await asyncio.Event().wait()

    embedder = ScriptedEmbedder(second_fails)
    with pytest.raises(ModelFailed) as raised:
        await whole(pipeline(embedder))
    assert raised.value is broken
    assert len(embedder.calls) == embedder.ended
    assert embedder.running == 0


async def test_a_cancelled_ingestion_leaves_no_group_behind(pipeline):
    begun = asyncio.Event()

    async def hang(texts: list[str]) -> None:
        begun.set()
        await asyncio.Event().wait()

    embedder = ScriptedEmbedder(hang)
    task = asyncio.ensure_future(whole(pipeline(embedder)))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert embedder.running == 0
    assert len(asyncio.all_tasks()) == 1


# --- parts ----------------------------------------------------------------------------------------------------------

PART = GROUP_CHUNKS * PART_GROUPS
LONGER = "".join(f"word{number} " for number in range(100 * (2 * PART + 7)))  # three parts


async def test_a_long_file_comes_in_parts_that_follow_each_other(pipeline):
    parts = await parts_of(pipeline(ScriptedEmbedder(), ScriptedReader(LONGER)))
    assert [len(part.chunks) for part in parts] == [PART, PART, 7]
    assert [part.is_first for part in parts] == [True, False, False]
    assert [part.is_last for part in parts] == [False, False, True]
    assert [chunk.ordinal for part in parts for chunk in part.chunks] == list(range(2 * PART + 7))
    vectors = np.concatenate([part.embeddings.dense for part in parts]).ravel()
    assert vectors.tolist() == [100.0 * number for number in range(2 * PART + 7)]
    assert len({part.plan for part in parts}) == 1
    assert {part.total for part in parts} == {2 * PART + 7}


@pytest.mark.parametrize("kept", [1, PART, 2 * PART + 6])
async def test_what_is_kept_is_not_embedded_again(pipeline, kept):
    plan = (await parts_of(pipeline(ScriptedEmbedder(), ScriptedReader(LONGER))))[0].plan
    embedder = ScriptedEmbedder()
    parts = await parts_of(pipeline(embedder, ScriptedReader(LONGER)), replace(JOB, kept=kept, plan=plan))
    assert [chunk.ordinal for part in parts for chunk in part.chunks] == list(range(kept, 2 * PART + 7))
    assert sum(call[3] for call in embedder.calls) == 2 * PART + 7 - kept
    assert parts[-1].is_last


@pytest.mark.parametrize("text", [LONGER + "word1", LONGER.replace("word5 ", "word5. ")])
async def test_a_file_that_is_cut_otherwise_begins_anew(pipeline, text):
    plan = (await parts_of(pipeline(ScriptedEmbedder(), ScriptedReader(LONGER))))[0].plan
    parts = await parts_of(pipeline(ScriptedEmbedder(), ScriptedReader(text)), replace(JOB, kept=PART, plan=plan))
    assert parts[0].is_first
    assert parts[0].plan != plan


async def test_who_takes_no_more_parts_leaves_no_group_behind(pipeline):
    embedder = ScriptedEmbedder()
    async with aclosing(pipeline(embedder, ScriptedReader(LONGER)).ingest(JOB)) as parts:
        async for _ in parts:
            break
    assert embedder.running == 0
    assert len(asyncio.all_tasks()) == 1


async def test_a_file_without_room_is_refused_before_anything_is_embedded(pipeline):
    embedder = ScriptedEmbedder()
    text = "word1 häuser"
    with pytest.raises(UnsupportedFile, match=f"{len(text.encode())} bytes of text, and the quota has 12 left"):
        await parts_of(pipeline(embedder, ScriptedReader(text)), replace(JOB, room=12))
    assert embedder.calls == []
    assert await parts_of(pipeline(embedder, ScriptedReader(text)), replace(JOB, room=len(text.encode())))
