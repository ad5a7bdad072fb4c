"""Doubles of the seams for tests: deterministic, in memory, and plain enough to be believed."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from rag.errors import InvalidRequest, NotFound, RagError, TooLarge, UnsupportedFile
from rag.filters import Filter, matches
from rag.protocols import Blobs, Embedder, Ingestor
from rag.stamp import check_searchable
from rag.types import (
    Attachment,
    Attributes,
    Chunk,
    Embeddings,
    ErrorCode,
    FileBatch,
    FileCounts,
    FileError,
    FileRecord,
    FileStatus,
    Float32,
    Hit,
    IngestedPart,
    IngestJob,
    Kind,
    ModelInfo,
    NewAttachment,
    Page,
    PageRequest,
    Priority,
    Scores,
    StoredText,
    T,
    VectorStoreRecord,
)

SPECIAL_TOKENS = 2


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


class HashEmbedder:
    """A bag of hashed words, of unit length: equal words, near vectors. One word is one token."""

    def __init__(self, dimension: int = 64, max_tokens: int = 512, model: str = "hash-embedder") -> None:
        self.model = ModelInfo(model, "1", dimension, max_tokens)
        self.calls: list[tuple[list[str], Kind, bool]] = []
        self.fails: RagError | None = None

    async def info(self) -> ModelInfo:
        return self.model

    async def stats(self) -> Mapping[str, float]:
        return {"items": float(len(self.calls))}

    async def embed(
        self,
        texts: Sequence[str],
        *,
        kind: Kind = Kind.PASSAGE,
        priority: Priority = Priority.INTERACTIVE,
        truncate: bool = False,
    ) -> Embeddings:
        self.calls.append((list(texts), kind, truncate))
        if self.fails is not None:
            raise self.fails
        window = self.model.max_tokens - SPECIAL_TOKENS
        rows, counts = [], []
        for index, text in enumerate(texts):
            tokens = words(text)
            if len(tokens) > window and not truncate:
                message = f"Input {index} has {len(tokens) + SPECIAL_TOKENS} tokens; at most {self.model.max_tokens}."
                raise InvalidRequest(message, f"input[{index}]", "string_above_max_length")
            counts.append(min(len(tokens), window) + SPECIAL_TOKENS)
            rows.append(self._vector(tokens[:window]))
        return Embeddings(np.stack(rows) if rows else self._no_rows(), np.array(counts, np.int32))

    def _vector(self, tokens: Sequence[str]) -> Float32:
        vector = np.full(self.model.dimension, 1e-3, np.float32)
        for token in tokens:
            vector[int.from_bytes(hashlib.sha256(token.encode()).digest()[:4]) % self.model.dimension] += 1
        return vector / np.linalg.norm(vector)

    def _no_rows(self) -> Float32:
        return np.zeros((0, self.model.dimension), np.float32)


class OverlapReranker:
    """The share of the query's words that the passage has."""

    def __init__(self, model: str = "overlap-reranker", max_tokens: int = 512) -> None:
        self.model = ModelInfo(model, "1", 0, max_tokens)
        self.calls: list[tuple[str, list[str]]] = []
        self.fails: RagError | None = None

    async def info(self) -> ModelInfo:
        return self.model

    async def stats(self) -> Mapping[str, float]:
        return {"items": float(len(self.calls))}

    async def rerank(self, query: str, passages: Sequence[str], *, max_tokens_per_passage: int | None = None) -> Scores:
        self.calls.append((query, list(passages)))
        if self.fails is not None:
            raise self.fails
        asked = set(words(query))
        if len(asked) + 2 * SPECIAL_TOKENS > self.model.max_tokens:
            raise InvalidRequest("The query fills the window.", "query")
        shares = [
            len(asked & set(words(passage)[:max_tokens_per_passage])) / max(1, len(asked)) for passage in passages
        ]
        return Scores(np.array(shares, np.float32), sum(len(words(text)) for text in [query, *passages]))


class FolderBlobs:
    """Bytes in a folder, written under a temporary name first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def write(self, file_id: str, stream: AsyncIterator[bytes], *, limit: int) -> tuple[int, str]:
        partial = self.folder / f"{file_id}.part"
        digest, size = hashlib.sha256(), 0
        try:
            with partial.open("wb") as out:
                async for data in stream:
                    size += len(data)
                    if size > limit:
                        raise TooLarge(f"The file is larger than the limit of {limit} bytes.", "file")
                    digest.update(data)
                    out.write(data)
        except BaseException:
            partial.unlink()
            raise
        partial.rename(self.folder / file_id)
        return size, digest.hexdigest()

    def path(self, file_id: str) -> Path:
        path = self.folder / file_id
        if not path.exists():
            raise NotFound(f"No such File object: {file_id}", "id")
        return path

    async def delete(self, file_id: str) -> None:
        (self.folder / file_id).unlink(missing_ok=True)

    async def ids(self, *, min_age_s: float = 0.0) -> list[str]:
        before = time.time() - min_age_s
        found = (path for path in self.folder.iterdir() if path.suffix != ".part")
        return [path.name for path in found if path.stat().st_mtime <= before]


class ParagraphIngestor:
    """Text files, one chunk a paragraph; all in one part."""

    def __init__(self, blobs: Blobs, embedder: Embedder) -> None:
        self.blobs = blobs
        self.embedder = embedder

    async def ingest(self, job: IngestJob) -> AsyncGenerator[IngestedPart, None]:
        try:
            text = self.blobs.path(job.file_id).read_bytes().decode()
        except UnicodeDecodeError as error:
            raise UnsupportedFile("This is not text.", ErrorCode.UNSUPPORTED_FILE) from error
        chunks = tuple(
            Chunk(ordinal, match.group(), len(words(match.group())), match.start(), match.end())
            for ordinal, match in enumerate(re.finditer(r"[^\n]+(\n[^\n]+)*", text))
        )
        if not chunks:
            raise UnsupportedFile("The file has no text.")
        embeddings = await self.embedder.embed([chunk.text for chunk in chunks], truncate=True)
        yield IngestedPart(chunks, embeddings, len(chunks))


@dataclass(eq=False)
class _Attached:
    attachment: Attachment
    chunks: dict[int, tuple[Chunk, Float32]] = field(default_factory=dict)


@dataclass
class _Batch:
    record: FileBatch
    made: list[_Attached]
    met: list[_Attached]  # attached before


@dataclass
class _Store:
    record: VectorStoreRecord
    files: dict[str, _Attached] = field(default_factory=dict)
    batches: dict[str, _Batch] = field(default_factory=dict)

    def of(self, batch: _Batch) -> list[_Attached]:
        """What of the batch is attached still."""
        return [one for one in (*batch.made, *batch.met) if self.files.get(one.attachment.file_id) is one]


class MemoryStores:
    """`rag.protocols.VectorStores` in dictionaries. With `hold` set, ingestion waits for that event."""

    def __init__(self, ingestor: Ingestor, clock: Callable[[], float] = time.time) -> None:
        self.ingestor = ingestor
        self.clock = clock
        self.hold: asyncio.Event | None = None
        self.fails: RagError | None = None
        self._files: dict[str, FileRecord] = {}
        self._stores: dict[str, _Store] = {}
        self._next_chunk = 1
        self._tasks: set[asyncio.Task[None]] = set()

    # files

    async def create_file(self, record: FileRecord) -> FileRecord:
        self._files[record.id] = record
        return record

    async def get_file(self, owner: str, file_id: str) -> FileRecord:
        record = self._files.get(file_id)
        if record is None or record.owner != owner:
            raise NotFound(f"No such File object: {file_id}", "id")
        return record

    async def list_files(self, owner: str, page: PageRequest, *, purpose: str | None = None) -> Page[FileRecord]:
        found = [f for f in self._files.values() if f.owner == owner and purpose in (None, f.purpose)]
        return paged(found, page, lambda f: (f.created_at, f.id))

    async def delete_file(self, owner: str, file_id: str) -> None:
        await self.get_file(owner, file_id)
        del self._files[file_id]
        for store in self._stores.values():
            store.files.pop(file_id, None)

    # vector stores

    def _store(self, owner: str, store_id: str) -> _Store:
        store = self._stores.get(store_id)
        if store is None or store.record.owner != owner:
            raise NotFound(f"No vector store with the id '{store_id}'.", "vector_store_id")
        return store

    def _shown(self, store: _Store) -> VectorStoreRecord:
        size = sum(attached.attachment.usage_bytes for attached in store.files.values())
        return replace(store.record, file_counts=_counted(store.files.values()), usage_bytes=size)

    def _touch(self, store: _Store) -> None:
        store.record = replace(store.record, last_active_at=int(self.clock()))

    async def create_store(
        self, record: VectorStoreRecord, files: Sequence[NewAttachment] = (), *, wait_s: float = 0.0
    ) -> VectorStoreRecord:
        store = self._stores[record.id] = _Store(record)
        await self._attach_all(store, files, wait_s)
        return self._shown(store)

    async def get_store(self, owner: str, store_id: str) -> VectorStoreRecord:
        return self._shown(self._store(owner, store_id))

    async def list_stores(self, owner: str, page: PageRequest) -> Page[VectorStoreRecord]:
        if self.fails is not None:
            raise self.fails
        found = [self._shown(store) for store in self._stores.values() if store.record.owner == owner]
        return paged(found, page, lambda record: (record.created_at, record.id))

    async def update_store(self, owner: str, store_id: str, changes: Mapping[str, object]) -> VectorStoreRecord:
        store = self._store(owner, store_id)
        store.record = replace(store.record, **changes)
        self._touch(store)
        return self._shown(store)

    async def delete_store(self, owner: str, store_id: str) -> None:
        self._store(owner, store_id)
        del self._stores[store_id]

    # files of a store

    async def attach(self, owner: str, store_id: str, new: NewAttachment, *, wait_s: float = 0.0) -> Attachment:
        store = self._store(owner, store_id)
        await self.get_file(owner, new.file_id)
        await self._attach_all(store, [new], wait_s)
        return store.files[new.file_id].attachment

    async def _attach_all(self, store: _Store, files: Sequence[NewAttachment], wait_s: float) -> list[_Attached]:
        """Attach what is not attached yet; gives what was made."""
        new = [file for file in files if file.file_id not in store.files]
        made = [self._attach(store, file) for file in new]
        self._touch(store)
        started = {asyncio.create_task(self._ingest(store, one)) for one in made if _is_open(one)}
        for task in started:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if started:
            await asyncio.wait(started, timeout=wait_s)
        return made

    def _attach(self, store: _Store, new: NewAttachment) -> _Attached:
        file = self._files.get(new.file_id)
        known = file is not None and file.owner == store.record.owner
        attachment = Attachment(
            store.record.id,
            new.file_id,
            FileStatus.IN_PROGRESS if known else FileStatus.FAILED,
            int(self.clock()),
            new.chunking,
            new.attributes,
            last_error=None if known else FileError(ErrorCode.INVALID_FILE, f"No such File object: {new.file_id}"),
            filename=file.filename if file and known else "",
        )
        attached = store.files[new.file_id] = _Attached(attachment)
        return attached

    async def _ingest(self, store: _Store, attached: _Attached) -> None:
        if self.hold is not None:
            await self.hold.wait()
        waiting = attached.attachment
        job = IngestJob(store.record.id, waiting.file_id, waiting.filename, waiting.chunking)
        parts: list[IngestedPart] = []
        try:
            async with aclosing(self.ingestor.ingest(job)) as found:
                async for part in found:
                    parts.append(part)
        except UnsupportedFile as error:
            self._finish(attached, FileStatus.FAILED, last_error=FileError(error.reason, error.message))
            return
        except RagError as error:
            self._finish(attached, FileStatus.FAILED, last_error=FileError(ErrorCode.SERVER_ERROR, error.message))
            return
        self._finish(attached, FileStatus.COMPLETED, parts)

    def _finish(
        self,
        attached: _Attached,
        status: FileStatus,
        parts: Sequence[IngestedPart] = (),
        last_error: FileError | None = None,
    ) -> None:
        if not _is_open(attached):
            return
        rows = [row for part in parts for row in zip(part.chunks, part.embeddings.dense, strict=True)]
        attached.attachment = replace(
            attached.attachment,
            status=status,
            usage_bytes=sum(len(chunk.text.encode()) for chunk, _ in rows),
            last_error=last_error,
            chunk_count=len(rows),
            token_count=sum(int(part.embeddings.token_counts.sum()) for part in parts),
        )
        for row in rows:
            attached.chunks[self._next_chunk] = row
            self._next_chunk += 1

    def _attached(self, owner: str, store_id: str, file_id: str) -> _Attached:
        attached = self._store(owner, store_id).files.get(file_id)
        if attached is None:
            raise NotFound(f"No file '{file_id}' in the vector store '{store_id}'.", "file_id")
        return attached

    async def get_attachment(self, owner: str, store_id: str, file_id: str) -> Attachment:
        return self._attached(owner, store_id, file_id).attachment

    async def list_attachments(
        self,
        owner: str,
        store_id: str,
        page: PageRequest,
        *,
        status: FileStatus | None = None,
        batch_id: str | None = None,
    ) -> Page[Attachment]:
        store = self._store(owner, store_id)
        members = store.files.values() if batch_id is None else store.of(self._batch(store, batch_id))
        found = [one.attachment for one in members if status in (None, one.attachment.status)]
        return paged(found, page, lambda attachment: (attachment.created_at, attachment.file_id))

    async def get_text(self, owner: str, store_id: str, file_id: str, *, with_vectors: bool = False) -> StoredText:
        rows = [row for _, row in sorted(self._attached(owner, store_id, file_id).chunks.items())]
        vectors = np.stack([vector for _, vector in rows]) if with_vectors and rows else None
        return StoredText(tuple(chunk for chunk, _ in rows), vectors)

    async def set_attributes(self, owner: str, store_id: str, file_id: str, attributes: Attributes) -> Attachment:
        attached = self._attached(owner, store_id, file_id)
        attached.attachment = replace(attached.attachment, attributes=attributes)
        self._touch(self._store(owner, store_id))
        return attached.attachment

    async def detach(self, owner: str, store_id: str, file_id: str) -> None:
        self._attached(owner, store_id, file_id)
        del self._stores[store_id].files[file_id]

    # batches of files

    def _batch(self, store: _Store, batch_id: str) -> _Batch:
        batch = store.batches.get(batch_id)
        if batch is None:
            raise NotFound(f"No such file batch: {batch_id} in vector store {store.record.id}", "batch_id")
        return batch

    async def create_batch(
        self, owner: str, batch: FileBatch, files: Sequence[NewAttachment], *, wait_s: float = 0.0
    ) -> FileBatch:
        store = self._store(owner, batch.store_id)
        met = [store.files[file.file_id] for file in files if file.file_id in store.files]
        made = await self._attach_all(store, files, wait_s)
        store.batches[batch.id] = _Batch(batch, made, met)
        return await self.get_batch(owner, batch.store_id, batch.id)

    async def get_batch(self, owner: str, store_id: str, batch_id: str) -> FileBatch:
        store = self._store(owner, store_id)
        batch = self._batch(store, batch_id)
        return replace(batch.record, file_counts=_counted(store.of(batch)))

    async def cancel_batch(self, owner: str, store_id: str, batch_id: str) -> FileBatch:
        store = self._store(owner, store_id)
        batch = self._batch(store, batch_id)
        unfinished = [one for one in batch.made if one in store.of(batch) and _is_open(one)]
        for one in unfinished:
            one.attachment = replace(one.attachment, status=FileStatus.CANCELLED)
        if unfinished:
            batch.record = replace(batch.record, cancelled=True)
        return await self.get_batch(owner, store_id, batch_id)

    # search

    async def search(
        self,
        owner: str,
        store_id: str,
        queries: Float32,
        *,
        model: ModelInfo,
        limit: int,
        where: Filter | None = None,
    ) -> list[Hit]:
        store = self._store(owner, store_id)
        check_searchable(store.record, model, self.clock())
        self._touch(store)
        hits = [
            self._hit(attached.attachment, chunk_id, chunk, queries @ vector)
            for attached in store.files.values()
            if where is None or matches(where, attached.attachment.attributes)
            for chunk_id, (chunk, vector) in attached.chunks.items()
        ]
        return sorted(hits, key=lambda hit: (-hit.score, hit.chunk_id))[:limit]

    async def stats(self) -> Mapping[str, float]:
        return {"stores": float(len(self._stores))}

    def _hit(self, attachment: Attachment, chunk_id: int, chunk: Chunk, cosines: Float32) -> Hit:
        best = int(np.argmax(cosines))
        score = float(np.clip(cosines[best], 0, 1))
        name = attachment.filename
        return Hit(attachment.store_id, attachment.file_id, name, attachment.attributes, chunk, chunk_id, score, best)


def _is_open(attached: _Attached) -> bool:
    return attached.attachment.status is FileStatus.IN_PROGRESS


def _counted(files: Iterable[_Attached]) -> FileCounts:
    states = [attached.attachment.status for attached in files]
    return FileCounts(**{status.value: states.count(status) for status in FileStatus})


def paged(items: Iterable[T], page: PageRequest, key: Callable[[T], tuple[int, str]]) -> Page[T]:
    """The part of a sorted list that a cursor asks for."""
    ordered = sorted(items, key=key, reverse=page.order == "desc")
    place = {key(item)[1]: position for position, item in enumerate(ordered)}
    for param, cursor in (("after", page.after), ("before", page.before)):
        if cursor is not None and cursor not in place:
            message = f"Unknown cursor '{cursor}': there is no such item in this list."
            raise InvalidRequest(message, param, "invalid_value")
    if page.before is not None:
        end = place[page.before]
        return Page(tuple(ordered[max(0, end - page.limit) : end]), end > page.limit)
    start = 0 if page.after is None else place[page.after] + 1
    return Page(tuple(ordered[start : start + page.limit]), len(ordered) > start + page.limit)
