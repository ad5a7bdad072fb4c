"""The product as its callers see it: what HTTP, tools and notebooks call, each with the owner's name."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rag import ids
from rag.errors import InvalidRequest, RagError, StoreUnavailable
from rag.inference import DecodeTokens, Inference
from rag.protocols import Blobs, Embedder, Reranker, VectorStores
from rag.search import SearchPipeline, SearchRequest
from rag.settings import SearchSettings
from rag.types import (
    Attachment,
    Attributes,
    ChunkingStrategy,
    FileBatch,
    FileRecord,
    FileStatus,
    NewAttachment,
    Page,
    PageRequest,
    SearchResult,
    StoredText,
    VectorStoreRecord,
)
from rag.uploads import ReceivedFile, check_filename, check_purpose, checked, expiry_seconds

MAX_FILES = 500  # in the creation of a store
MAX_BATCH_FILES = 2000


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """What of the settings the service needs."""

    embedder_aliases: tuple[str, ...] = ()
    reranker_aliases: tuple[str, ...] = ()
    chunking: ChunkingStrategy = field(default_factory=ChunkingStrategy)
    search: SearchSettings = field(default_factory=SearchSettings)
    ingest_wait_s: float = 2.0
    max_upload_bytes: int = 32 * 1024 * 1024
    ready_timeout_s: float = 5.0


@dataclass(frozen=True, slots=True)
class NewVectorStore:
    """What a caller asks to create."""

    name: str = ""
    description: str | None = None
    metadata: Mapping[str, str] | None = None
    expires_after_days: int | None = None
    files: tuple[NewAttachment, ...] = ()


class RagService:
    """Models, files, vector stores and search behind one object. Ids of another owner are NotFound everywhere."""

    def __init__(
        self,
        embedder: Embedder,
        reranker: Reranker | None,
        stores: VectorStores,
        blobs: Blobs,
        options: ServiceOptions | None = None,
        *,
        decode_tokens: DecodeTokens | None = None,
    ) -> None:
        """`decode_tokens` turns token ids that clients send in place of text into text; None refuses them."""
        self.options = options or ServiceOptions()
        self.inference = Inference(
            embedder,
            reranker,
            embedder_aliases=self.options.embedder_aliases,
            reranker_aliases=self.options.reranker_aliases,
            decode_tokens=decode_tokens,
        )
        self._stores = stores
        self._blobs = blobs
        self._pipeline = SearchPipeline(
            embedder, reranker, stores, self.options.search, reranker_aliases=self.options.reranker_aliases
        )

    async def stats(self) -> dict[str, Mapping[str, float]]:
        """What the parts count, by part; `up` is 0 for one that does not answer."""
        inference = self.inference
        parts: dict[str, Awaitable[Mapping[str, float]]] = {"embedder": inference.embedder.stats()}
        if inference.reranker is not None:
            parts["reranker"] = inference.reranker.stats()
        parts["store"] = self._stores.stats()
        found = await asyncio.gather(*map(_if_up, parts.values()))
        return dict(zip(parts, found, strict=True))

    # --- files ------------------------------------------------------------------------------------------------------

    async def receive_file(self, filename: str, stream: AsyncIterator[bytes]) -> ReceivedFile:
        """Write an upload to the blobs; `create_file` or `discard_file` must follow.

        Raises:
            InvalidRequest: a bad name, no bytes, or bytes that are not what the name says; nothing is kept.
            TooLarge: over the limit; nothing is kept.
        """
        file_id = ids.new_id(ids.FILE)
        content = checked(check_filename(filename), stream)
        size, sha256 = await self._blobs.write(file_id, content, limit=self.options.max_upload_bytes)
        return ReceivedFile(file_id, filename, size, sha256)

    async def create_file(
        self, owner: str, received: ReceivedFile, *, purpose: str | None, expires_after_s: int | None = None
    ) -> FileRecord:
        """Make an upload the owner's file.

        Raises:
            InvalidRequest: an unknown purpose, an expiry out of range, or a quota that is used up; the bytes are
                discarded.
        """
        now = int(time.time())
        try:
            purpose = check_purpose(purpose)
            lifetime = expiry_seconds(purpose, expires_after_s)
            record = FileRecord(
                id=received.id,
                owner=owner,
                filename=received.filename,
                bytes=received.bytes,
                purpose=purpose,
                created_at=now,
                sha256=received.sha256,
                expires_at=None if lifetime is None else now + lifetime,
            )
            return await self._stores.create_file(record)
        except InvalidRequest:
            await self.discard_file(received)
            raise

    async def discard_file(self, received: ReceivedFile) -> None:
        """Remove an upload that did not become a file."""
        await self._blobs.delete(received.id)

    async def list_files(self, owner: str, page: PageRequest, *, purpose: str | None = None) -> Page[FileRecord]:
        """The owner's uploads."""
        return await self._stores.list_files(owner, page, purpose=purpose)

    async def get_file(self, owner: str, file_id: str) -> FileRecord:
        """One upload."""
        return await self._stores.get_file(owner, file_id)

    async def file_content(self, owner: str, file_id: str) -> tuple[FileRecord, Path]:
        """One upload and where its bytes lie."""
        record = await self._stores.get_file(owner, file_id)
        return record, self._blobs.path(record.id)

    async def delete_file(self, owner: str, file_id: str) -> None:
        """Remove an upload, from every store too."""
        await self._stores.delete_file(owner, file_id)
        await self._blobs.delete(file_id)

    # --- vector stores ----------------------------------------------------------------------------------------------

    async def create_store(self, owner: str, new: NewVectorStore) -> VectorStoreRecord:
        """Create a store, stamped with the served embedding model, and attach files to it."""
        if len(new.files) > MAX_FILES:
            message = f"A store is created with at most {MAX_FILES} files; got {len(new.files)}."
            raise InvalidRequest(message, "file_ids", "array_above_max_length")
        now = int(time.time())
        record = VectorStoreRecord(
            id=ids.new_id(ids.VECTOR_STORE),
            owner=owner,
            name=new.name,
            created_at=now,
            last_active_at=now,
            model=await self.inference.embedder.info(),
            description=new.description,
            metadata=new.metadata,
            expires_after_days=new.expires_after_days,
        )
        files = tuple({file.file_id: file for file in new.files}.values())
        return await self._stores.create_store(record, files, wait_s=self.options.ingest_wait_s)

    async def list_stores(self, owner: str, page: PageRequest) -> Page[VectorStoreRecord]:
        """The owner's stores."""
        return await self._stores.list_stores(owner, page)

    async def get_store(self, owner: str, store_id: str) -> VectorStoreRecord:
        """One store."""
        return await self._stores.get_store(owner, _store(store_id))

    async def update_store(self, owner: str, store_id: str, changes: Mapping[str, object]) -> VectorStoreRecord:
        """Change `name`, `metadata` or `expires_after_days`; a key that is absent stays as it is."""
        return await self._stores.update_store(owner, _store(store_id), changes)

    async def delete_store(self, owner: str, store_id: str) -> None:
        """Remove a store; its files stay uploaded."""
        await self._stores.delete_store(owner, _store(store_id))

    # --- files of a store -------------------------------------------------------------------------------------------

    async def attach(self, owner: str, store_id: str, new: NewAttachment) -> Attachment:
        """Attach a file and wait a little for its ingestion."""
        return await self._stores.attach(owner, _store(store_id), new, wait_s=self.options.ingest_wait_s)

    async def list_attachments(
        self, owner: str, store_id: str, page: PageRequest, *, status: FileStatus | None = None
    ) -> Page[Attachment]:
        """A store's files."""
        return await self._stores.list_attachments(owner, _store(store_id), page, status=status)

    async def file_text(self, owner: str, store_id: str, file_id: str, *, with_vectors: bool = False) -> StoredText:
        """What a store keeps of one of its files."""
        return await self._stores.get_text(owner, _store(store_id), file_id, with_vectors=with_vectors)

    async def get_attachment(self, owner: str, store_id: str, file_id: str) -> Attachment:
        """One of a store's files."""
        return await self._stores.get_attachment(owner, _store(store_id), file_id)

    async def set_attributes(self, owner: str, store_id: str, file_id: str, attributes: Attributes) -> Attachment:
        """Replace all attributes; the next search sees them."""
        return await self._stores.set_attributes(owner, _store(store_id), file_id, attributes)

    async def detach(self, owner: str, store_id: str, file_id: str) -> None:
        """Take a file out of a store; it stays uploaded."""
        await self._stores.detach(owner, _store(store_id), file_id)

    # --- batches of files -------------------------------------------------------------------------------------------

    async def create_batch(self, owner: str, store_id: str, files: Sequence[NewAttachment]) -> FileBatch:
        """Attach several files at once and wait a little for their ingestion."""
        if not 1 <= len(files) <= MAX_BATCH_FILES:
            message = f"A batch has 1 to {MAX_BATCH_FILES} files; got {len(files)}."
            raise InvalidRequest(message, "file_ids", "array_above_max_length" if files else "invalid_value")
        batch = FileBatch(ids.new_id(ids.FILE_BATCH), _store(store_id), int(time.time()))
        unique = tuple({file.file_id: file for file in reversed(files)}.values())[::-1]
        return await self._stores.create_batch(owner, batch, unique, wait_s=self.options.ingest_wait_s)

    async def get_batch(self, owner: str, store_id: str, batch_id: str) -> FileBatch:
        """One batch."""
        return await self._stores.get_batch(owner, _store(store_id), _batch(batch_id))

    async def cancel_batch(self, owner: str, store_id: str, batch_id: str) -> FileBatch:
        """Give up what a batch has not ingested yet; what is completed stays."""
        return await self._stores.cancel_batch(owner, _store(store_id), _batch(batch_id))

    async def list_batch_files(
        self, owner: str, store_id: str, batch_id: str, page: PageRequest, *, status: FileStatus | None = None
    ) -> Page[Attachment]:
        """The files of a batch."""
        return await self._stores.list_attachments(
            owner, _store(store_id), page, status=status, batch_id=_batch(batch_id)
        )

    # --- search and health ------------------------------------------------------------------------------------------

    async def search(self, owner: str, request: SearchRequest) -> SearchResult:
        """Find passages in one or several stores."""
        for store_id in request.store_ids:
            _store(store_id)
        return await self._pipeline.search(owner, request)

    async def check_ready(self) -> None:
        """Embed, rerank and read a list through the real queues.

        Raises:
            StoreUnavailable: a part failed or did not answer in time; the message says which error.
        """
        try:
            async with asyncio.timeout(self.options.ready_timeout_s):
                probe = self._stores.list_stores("", PageRequest(limit=1))
                await asyncio.gather(self.inference.probe(), probe)
        except TimeoutError:
            raise StoreUnavailable(f"Not ready: no answer within {self.options.ready_timeout_s:g} s.") from None
        except RagError as error:
            raise StoreUnavailable(f"Not ready: {error.message}") from error


def _store(store_id: str) -> str:
    return ids.check_id(store_id, ids.VECTOR_STORE, "vector_store_id")


def _batch(batch_id: str) -> str:
    return ids.check_id(batch_id, ids.FILE_BATCH, "batch_id")


async def _if_up(numbers: Awaitable[Mapping[str, float]]) -> Mapping[str, float]:
    try:
        return {**await numbers, "up": 1.0}
    except RagError:
        return {"up": 0.0}
