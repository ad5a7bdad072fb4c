"""Everything that is kept, in one data directory of this process: DuckDB is the truth, FAISS a cache of it in memory.

| killed                              | at the next opening                                                      |
| ----------------------------------- | ------------------------------------------------------------------------ |
| before a commit                     | nothing happened; an ingestion is still pending and is repeated          |
| after a commit, before it was       | the index is built from the rows, so the change is there                 |
| published to searches               |                                                                          |
| during a checkpoint                 | the log is replayed; see `storage.database` for damage                   |
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import duckdb
import numpy as np

from rag.errors import ModelFailed, ModelMismatch, NotFound, StoreDamaged, StoreUnavailable
from rag.filters import Filter, matches
from rag.settings import QuotaSettings
from rag.stamp import check_searchable, is_same_model
from rag.types import (
    Attachment,
    Attributes,
    Embeddings,
    FileBatch,
    FileError,
    FileRecord,
    FileStatus,
    Float32,
    Hit,
    IngestedPart,
    IngestJob,
    ModelInfo,
    NewAttachment,
    Page,
    PageRequest,
    StoredText,
    VectorStoreRecord,
)
from storage import batches, catalog, chunks, ingestion, reembedding
from storage.activity import Activity
from storage.database import Cursor, Database
from storage.dense import Float16
from storage.faiss_index import FaissIndex, check_gpu
from storage.generations import AttachedFile, Change, Generation, Rows, Scored, StoreIndex
from storage.layout import ShardLayout
from storage.lock import DirectoryLock
from storage.quotas import Quotas
from storage.settings import StorageSettings
from storage.verification import check_blobs, check_index, check_rows
from storage.writer import WriteThread

T = TypeVar("T")

logger = logging.getLogger(__name__)


class LocalStores:
    """`rag.protocols.VectorStores`, blocking, and the side of it that ingestion jobs see.

    May be called from any thread: reads run side by side, writes one after the other.
    """

    def __init__(
        self,
        data_dir: Path,
        settings: StorageSettings | None = None,
        *,
        threads: int | None = None,
        quotas: QuotaSettings | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Own the directory, creating it where it is missing. `threads` are for DuckDB and FAISS.

        Raises:
            StoreLocked: another process owns it and did not leave in time.
            StoreDamaged: the data cannot be opened as it is; nothing was changed.
        """
        self._settings = settings or StorageSettings()
        self._threads = threads or self._settings.threads or os.cpu_count() or 1
        self._clock = clock
        self._quotas = Quotas(quotas or QuotaSettings())
        if self._settings.index.device == "cuda":
            check_gpu()
        data_dir.mkdir(parents=True, exist_ok=True)
        layout = ShardLayout(data_dir)
        self._lock = DirectoryLock(layout.lock, wait_s=self._settings.lock_wait_s)
        try:
            self._database = Database(
                layout, threads=self._threads, open_from_checkpoint=self._settings.open_from_checkpoint
            )
        except BaseException:
            self._lock.release()
            raise
        self._writer = WriteThread(self._database)
        self._activity = Activity(clock)
        self._indexes: dict[str, StoreIndex] = {}
        self._closed = False
        if self._database.recovered:
            reopened = self._write(ingestion.reopen_incomplete)
            logger.warning("%d files whose chunks were lost are ingested again.", reopened)

    def close(self) -> None:
        """Finish the writes that were begun, checkpoint, and let the next owner in."""
        if self._closed:
            return
        self._closed = True
        if self._activity.pending():
            self._write(lambda _: None)
        self._writer.close()
        self._database.close()
        self._lock.release()

    # --- files ------------------------------------------------------------------------------------------------------

    def create_file(self, record: FileRecord) -> FileRecord:
        def create(cursor: Cursor) -> None:
            self._quotas.check_file(cursor, record)
            catalog.insert_file(cursor, record)

        self._write(create)
        return record

    def get_file(self, owner: str, file_id: str) -> FileRecord:
        return catalog.get_file(self._database.cursor, owner, file_id)

    def list_files(self, owner: str, page: PageRequest, *, purpose: str | None = None) -> Page[FileRecord]:
        return catalog.list_files(self._database.cursor, owner, page, purpose)

    def delete_file(self, owner: str, file_id: str) -> None:
        def publish(attached: list[tuple[str, int]]) -> None:
            for store_id, key in attached:
                self._change(store_id, partial(_without, key))

        self._write(lambda cursor: catalog.delete_file(cursor, owner, file_id), publish)

    # --- vector stores ----------------------------------------------------------------------------------------------

    def create_store(self, record: VectorStoreRecord, files: Sequence[NewAttachment] = ()) -> VectorStoreRecord:
        def create(cursor: Cursor) -> None:
            self._quotas.check_store(cursor, record.owner)
            catalog.insert_store(cursor, record)
            self._attach_all(cursor, record.owner, record.id, files)

        self._write(create)
        return self.get_store(record.owner, record.id)

    def get_store(self, owner: str, store_id: str) -> VectorStoreRecord:
        return self._activity.seen(catalog.get_store(self._database.cursor, owner, store_id))

    def list_stores(self, owner: str, page: PageRequest) -> Page[VectorStoreRecord]:
        found = catalog.list_stores(self._database.cursor, owner, page)
        return Page(tuple(self._activity.seen(record) for record in found.items), found.has_more)

    def update_store(self, owner: str, store_id: str, changes: Mapping[str, object]) -> VectorStoreRecord:
        def update(cursor: Cursor) -> None:
            self._check_alive(cursor, owner, store_id)
            catalog.update_store(cursor, store_id, changes)
            self._activity.touch(store_id)

        def publish(_: None) -> None:
            if (index := self._indexes.get(store_id)) is not None:
                index.record = catalog.get_uncounted_store(self._database.cursor, owner, store_id)

        self._write(update, publish)
        return self.get_store(owner, store_id)

    def delete_store(self, owner: str, store_id: str) -> None:
        self._write(
            lambda cursor: catalog.delete_store(cursor, owner, store_id),
            lambda _: self._indexes.pop(store_id, None),
        )

    def _check_alive(self, cursor: Cursor, owner: str, store_id: str) -> None:
        """An expired store stays expired: its chunks may be gone."""
        record = self._activity.seen(catalog.get_uncounted_store(cursor, owner, store_id))
        check_searchable(record, record.model, self._clock())

    # --- files of a store -------------------------------------------------------------------------------------------

    def attach(self, owner: str, store_id: str, new: NewAttachment) -> Attachment:
        def attach(cursor: Cursor) -> Attachment:
            self._check_alive(cursor, owner, store_id)
            self._activity.touch(store_id)
            if (existing := catalog.find_attachment(cursor, store_id, new.file_id)) is not None:
                return existing
            names = {new.file_id: catalog.get_file(cursor, owner, new.file_id).filename}
            catalog.insert_attachments(cursor, store_id, [new], names, int(self._clock()))
            found = catalog.find_attachment(cursor, store_id, new.file_id)
            assert found is not None  # one transaction
            return found

        return self._write(attach)

    def get_attachment(self, owner: str, store_id: str, file_id: str) -> Attachment:
        return catalog.get_attachment(self._database.cursor, owner, store_id, file_id)

    def list_attachments(
        self,
        owner: str,
        store_id: str,
        page: PageRequest,
        *,
        status: FileStatus | None = None,
        batch_id: str | None = None,
    ) -> Page[Attachment]:
        cursor = self._database.cursor
        if batch_id is not None:
            self.get_batch(owner, store_id, batch_id)
        return catalog.list_attachments(cursor, owner, store_id, page, status, batch_id)

    def get_text(self, owner: str, store_id: str, file_id: str, *, with_vectors: bool = False) -> StoredText:
        cursor = self._database.cursor
        attachment = catalog.get_attachment(cursor, owner, store_id, file_id)
        key = catalog.attachment_keys(cursor, store_id, [file_id]).get(file_id)
        if key is None or attachment.status is not FileStatus.COMPLETED:
            return StoredText(())
        return chunks.text(cursor, key, with_vectors=with_vectors)

    def set_attributes(self, owner: str, store_id: str, file_id: str, attributes: Attributes) -> Attachment:
        def update(cursor: Cursor) -> tuple[int, AttachedFile, Attachment]:
            self._check_alive(cursor, owner, store_id)
            key = self._key(cursor, owner, store_id, file_id)
            catalog.set_attributes(cursor, key, attributes)
            self._activity.touch(store_id)
            attachment = catalog.get_attachment(cursor, owner, store_id, file_id)
            return key, catalog.attached_file(cursor, key), attachment

        def publish(written: tuple[int, AttachedFile, Attachment]) -> None:
            key, file, attachment = written
            if attachment.status is FileStatus.COMPLETED:
                self._change(store_id, lambda generation: generation.with_attributes(key, file))

        return self._write(update, publish)[2]

    def detach(self, owner: str, store_id: str, file_id: str) -> None:
        def detach(cursor: Cursor) -> int:
            key = self._key(cursor, owner, store_id, file_id)
            catalog.delete_attachment(cursor, key)
            self._activity.touch(store_id)
            return key

        self._write(detach, lambda key: self._change(store_id, partial(_without, key)))

    def _attach_all(
        self, cursor: Cursor, owner: str, store_id: str, files: Sequence[NewAttachment], batch_id: str | None = None
    ) -> list[int]:
        """Attach what is not attached yet, and fail what is not there; gives the keys of all."""
        wanted = {file.file_id: file for file in reversed(files)}
        known = catalog.attachment_keys(cursor, store_id, list(wanted))
        new = [file for file_id, file in reversed(wanted.items()) if file_id not in known]
        names = catalog.filenames(cursor, owner, [file.file_id for file in new])
        made = catalog.insert_attachments(cursor, store_id, new, names, int(self._clock()), batch_id) if new else []
        return [*known.values(), *made]

    @staticmethod
    def _key(cursor: Cursor, owner: str, store_id: str, file_id: str) -> int:
        catalog.get_attachment(cursor, owner, store_id, file_id)
        return catalog.attachment_keys(cursor, store_id, [file_id])[file_id]

    # --- batches of files -------------------------------------------------------------------------------------------

    def create_batch(self, owner: str, batch: FileBatch, files: Sequence[NewAttachment]) -> FileBatch:
        def create(cursor: Cursor) -> None:
            self._check_alive(cursor, owner, batch.store_id)
            batches.insert(cursor, batch, self._attach_all(cursor, owner, batch.store_id, files, batch.id))
            self._activity.touch(batch.store_id)

        self._write(create)
        return self.get_batch(owner, batch.store_id, batch.id)

    def get_batch(self, owner: str, store_id: str, batch_id: str) -> FileBatch:
        cursor = self._database.cursor
        catalog.check_store(cursor, owner, store_id)
        return batches.get(cursor, store_id, batch_id)

    def cancel_batch(self, owner: str, store_id: str, batch_id: str) -> FileBatch:
        def cancel(cursor: Cursor) -> None:
            catalog.check_store(cursor, owner, store_id)
            batches.get(cursor, store_id, batch_id)
            ingestion.give_up(cursor, batches.cancel(cursor, batch_id), FileStatus.CANCELLED)

        self._write(cancel)
        return self.get_batch(owner, store_id, batch_id)

    # --- search -----------------------------------------------------------------------------------------------------

    def search(
        self,
        owner: str,
        store_id: str,
        queries: Float32,
        *,
        model: ModelInfo,
        limit: int,
        where: Filter | None = None,
    ) -> list[Hit]:
        """As `rag.protocols.VectorStores.search`.

        Raises:
            NotFound: no such store.
            InvalidRequest: it has expired.
            ModelMismatch: it was filled with another model, or the queries have another dimension.
            ModelFailed: a query is not finite.
        """
        while True:
            index = self._index(owner, store_id)
            check_searchable(self._activity.seen(index.record), model, self._clock())
            _check_queries(queries, index.record.model.dimension)
            self._activity.touch(store_id)
            generation = index.generation
            if generation is None:
                generation = self._load(store_id, index)
            attachments = None if where is None else catalog.matching(self._database.cursor, store_id, where)
            found = generation.search(queries, limit, attachments)
            hits = self._fetch(found, generation, where)
            if len(hits) == len(found):
                return hits
            # A winner was deleted, or its attributes were changed, meanwhile. Wait until that is published and search
            # what is there now.
            self._writer.between(lambda: None)

    def _fetch(self, found: Sequence[Scored], generation: Generation, where: Filter | None) -> list[Hit]:
        """The hits as far as they are still true: a chunk goes in the transaction in which its attachment goes."""
        if not found:
            return []
        rows = chunks.fetch(self._database.cursor, [scored.chunk_id for scored in found])
        hits = []
        for scored in found:
            if scored.chunk_id not in rows:
                continue
            attachment, chunk = rows[scored.chunk_id]
            file = generation.files[attachment]
            if where is None or matches(where, file.attributes):
                names = (file.store_id, file.file_id, file.filename, file.attributes)
                score = min(1.0, max(0.0, scored.score))
                hits.append(Hit(*names, chunk, scored.chunk_id, score, scored.query_index))
        return sorted(hits, key=lambda hit: (-hit.score, hit.chunk_id))

    def _index(self, owner: str, store_id: str) -> StoreIndex:
        index = self._indexes.get(store_id)
        if index is None:
            # On the write thread, so that a store which is deleted right now is not put back.
            index = self._writer.between(lambda: self._register(owner, store_id))
        if index.record.owner != owner:
            raise NotFound(f"No such vector store: {store_id}", "id")
        return index

    def _register(self, owner: str, store_id: str) -> StoreIndex:
        record = catalog.get_uncounted_store(self._database.cursor, owner, store_id)
        return self._indexes.setdefault(store_id, StoreIndex(record))

    def _load(self, store_id: str, index: StoreIndex) -> Generation:
        with index.loading:
            if index.generation is not None:
                return index.generation
            started = time.monotonic()
            generation = None
            cursor = self._database.new_cursor()

            def pin() -> None:
                cursor.begin()
                cursor.execute("select commits from ledger").fetchall()  # the snapshot is taken here
                index.begin_loading()

            self._writer.between(pin)
            try:
                rows = chunks.load(cursor, store_id, index.record.model.dimension)
                generation = self._build(rows, catalog.ingested_files(cursor, store_id))
            except duckdb.Error as error:
                raise StoreDamaged(f"The chunks of vector store {store_id} cannot be read: {error}") from error
            finally:
                cursor.close()
                loaded = self._writer.between(partial(index.install, generation))
            logger.info("Index of %s: %d chunks in %.2f s", store_id, len(generation), time.monotonic() - started)
            return generation if loaded is None else loaded

    def _build(self, rows: Rows, files: Mapping[int, AttachedFile]) -> Generation:
        settings = self._settings.index
        tail = partial(FaissIndex, threads=self._threads)
        main = partial(tail, gpu=settings.device == "cuda")
        return Generation.build(rows, files, make_main=main, make_tail=tail, max_tail=settings.tail)

    # --- ingestion --------------------------------------------------------------------------------------------------

    def pending_jobs(self) -> list[IngestJob]:
        """Whatever still has to be ingested, oldest first."""
        return ingestion.pending_jobs(self._database.cursor)

    def begin(self, job: IngestJob) -> IngestJob | None:
        """The job with what an earlier attempt has left and what its owner has room for; None where it is not wanted
        any more."""
        cursor = self._database.cursor
        found = ingestion.open_attachment(cursor, job)
        if found is None:
            return None
        return replace(job, kept=found.chunk_count, plan=found.plan or "", room=self._quotas.room(cursor, found))

    def keep(self, job: IngestJob, part: IngestedPart) -> bool:
        """Write a part's chunks, in one transaction. With the last part the attachment is completed, and the next
        search finds all of it.

        False, and nothing was written, where the attachment is not wanted any more.

        Raises:
            ModelMismatch: the vectors have another dimension than the store.
            ModelFailed: a vector is not finite.
            UnsupportedFile: the owner's quota has no room for it.
            StoreUnavailable: what came before this part is not there.
        """
        vectors = part.embeddings.dense.astype(np.float16)

        def write(cursor: Cursor) -> tuple[AttachedFile, Rows] | bool:
            found = ingestion.open_attachment(cursor, job)
            if found is None:
                return False
            _check_vectors(vectors, found.dimension, job)
            if not found.continues_with(part):
                raise StoreUnavailable(f"Chunks of file {job.file_id} are missing; it is read again.")
            self._quotas.check_text(cursor, found, part)
            if found.chunk_count and part.is_first:
                chunks.delete(cursor, found.key)
            rows = chunks.insert(cursor, found.key, part, vectors)
            ingestion.count_part(cursor, found.key, part)
            if not part.is_last:
                return True
            if not part.is_first:
                rows = chunks.load_attachment(cursor, found.key, found.dimension)
            return found.file, rows

        def publish(written: tuple[AttachedFile, Rows] | bool) -> None:
            if isinstance(written, tuple):
                attached, rows = written
                key = int(rows.attachments[0])
                self._change(job.store_id, lambda generation: generation.with_file(key, attached, rows))

        return self._write(write, publish) is not False

    def fail(self, job: IngestJob, error: FileError) -> None:
        """The file cannot be ingested; nothing happens where the attachment is gone or in a final state."""
        self._write(lambda cursor: ingestion.fail_attachment(cursor, job, error))

    def retry(self, job: IngestJob) -> None:
        """Put on record that this attempt failed in passing; `pending_jobs` then gives the job with the next one."""
        self._write(lambda cursor: ingestion.count_attempt(cursor, job))

    # --- care -------------------------------------------------------------------------------------------------------

    def stats(self) -> dict[str, float]:
        """Numbers for metrics: rows of every kind, what the loaded indexes hold, and bytes on disk."""
        generations = [index.generation for index in list(self._indexes.values())]
        loaded = [generation for generation in generations if generation is not None]
        return {
            **catalog.counts(self._database.cursor),
            "indexed_live": float(sum(len(generation) for generation in loaded)),
            "indexed_dead": float(sum(generation.dead for generation in loaded)),
            "indexed_tail": float(sum(len(generation.tail.ids) for generation in loaded)),
            "bytes_on_disk": float(self._database.bytes_on_disk),
        }

    def purge_expired(self) -> list[str]:
        """Delete the chunks of stores that have expired; to be called now and then. Gives the stores that had any."""

        def purge(cursor: Cursor) -> list[str]:
            self._record_uses(cursor)
            return catalog.purge_expired(cursor, int(self._clock()))

        def publish(store_ids: list[str]) -> None:
            for store_id in store_ids:
                self._indexes.pop(store_id, None)

        return self._write(purge, publish)

    def purge_uploads(self) -> list[str]:
        """Forget uploads whose time is over, but for those that are being ingested; gives their ids. Vector stores
        keep their copies."""
        return self._write(lambda cursor: catalog.purge_uploads(cursor, int(self._clock())))

    def purge_batches(self, max_age_s: int) -> int:
        """Forget batches, not their files, that are older; gives how many."""
        return self._write(lambda cursor: batches.purge(cursor, int(self._clock()) - max_age_s))

    def unknown_files(self, file_ids: Sequence[str]) -> list[str]:
        """Those ids that no upload has; none while a damaged log is kept, since the records may be in that."""
        if self._database.lacks_records:
            return []
        return catalog.unknown_files(self._database.cursor, file_ids)

    def stale_stores(self, model: ModelInfo) -> list[VectorStoreRecord]:
        """Those that were filled with another model, of all owners."""
        cursor = self._database.cursor
        records = (catalog.get_uncounted_store(cursor, *names) for names in catalog.store_ids(cursor))
        return [record for record in records if not is_same_model(record.model, model)]

    def chunks_without(self, store_id: str, model: ModelInfo, limit: int) -> list[tuple[int, str]]:
        """Id and text of chunks of a store that have no vector of the model yet, at most `limit`."""
        return reembedding.missing(self._database.cursor, store_id, model, limit)

    def count_without(self, store_id: str, model: ModelInfo) -> int:
        """How many those are in all."""
        return reembedding.count_missing(self._database.cursor, store_id, model)

    def keep_vectors(self, model: ModelInfo, ids: Sequence[int], embeddings: Embeddings) -> None:
        """Vectors of another model for chunks, beside the old ones: searches do not see them yet."""
        self._write(lambda cursor: reembedding.insert(cursor, model, ids, embeddings))

    def swap_model(self, store_id: str, model: ModelInfo) -> None:
        """Put the kept vectors of the model in the place of the old ones, when every chunk has one.

        Raises:
            StoreUnavailable: some have none yet; nothing was changed.
        """

        def swap(cursor: Cursor) -> None:
            if reembedding.missing(cursor, store_id, model, 1):
                raise StoreUnavailable(f"Chunks of vector store {store_id} have no vector of {model.id} yet.")
            reembedding.swap(cursor, store_id, model)

        self._write(swap, lambda _: self._indexes.pop(store_id, None))

    def verify(self, lying: Iterable[str]) -> list[str]:
        """A sentence for everything that exists on one side only: in rows, in the index of a store, or among the bytes
        of uploads, whose ids are `lying`. Reads everything; meant for a store that nobody else uses meanwhile."""
        cursor = self._database.cursor
        found = [*check_rows(cursor, int(self._clock())), *check_blobs(cursor, lying)]
        for owner, store_id in catalog.store_ids(cursor):
            index = self._index(owner, store_id)
            generation = index.generation or self._load(store_id, index)
            found += check_index(cursor, store_id, generation.ids)
        return found

    def checkpoint(self) -> None:
        """Fold the log into the database, so that its file can be copied while nothing is written."""
        self._writer.between(self._database.checkpoint)

    # --- writing ----------------------------------------------------------------------------------------------------

    def _write(self, task: Callable[[Cursor], T], publish: Callable[[T], object] = lambda _: None) -> T:
        """Run a task on the write thread, with the uses since the last write."""

        def with_uses(cursor: Cursor) -> tuple[T, dict[str, int]]:
            return task(cursor), self._record_uses(cursor)

        def publish_both(outcome: tuple[T, dict[str, int]]) -> None:
            self._activity.recorded(outcome[1])
            publish(outcome[0])

        return self._writer.write(with_uses, publish_both)[0]

    def _record_uses(self, cursor: Cursor) -> dict[str, int]:
        uses = self._activity.pending()
        for store_id, when in uses.items():
            catalog.touch_store(cursor, store_id, when)
        return uses

    def _change(self, store_id: str, change: Change) -> None:
        index = self._indexes.get(store_id)
        if index is not None:
            index.apply(change)


def _without(attachment: int, generation: Generation) -> Generation:
    return generation.without(attachment)


def _check_queries(queries: Float32, dimension: int) -> None:
    if queries.shape[1] != dimension:
        raise ModelMismatch(f"The store has vectors of {dimension} dimensions; the query has {queries.shape[1]}.")
    if not np.isfinite(queries).all():
        raise ModelFailed("The embedding of the query is not finite.")


def _check_vectors(vectors: Float16, dimension: int, job: IngestJob) -> None:
    if vectors.shape[1] != dimension:
        raise ModelMismatch(
            f"The vector store {job.store_id} takes vectors of dimension {dimension}; "
            f"those of file {job.file_id} have {vectors.shape[1]}.",
            "vector_store_id",
        )
    if not np.isfinite(vectors).all():
        raise ModelFailed(f"A vector of file {job.file_id} is not finite.")
