"""What anything that keeps vector stores must do. A subclass gives the fixtures `stores` and `store`."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rag.errors import InvalidRequest, ModelFailed, ModelMismatch, NotFound, StoreUnavailable
from rag.filters import Comparison
from rag.types import (
    ChunkingStrategy,
    Embeddings,
    ErrorCode,
    FileBatch,
    FileCounts,
    FileError,
    FileStatus,
    IngestedPart,
    NewAttachment,
    PageRequest,
)
from storage.local import LocalStores
from tests.storage.made import (
    DIMENSION,
    MODEL,
    OWNER,
    STORE,
    axis,
    file_record,
    fill,
    ingested,
    job,
    store_record,
    units,
)

FAILURE = FileError(ErrorCode.UNSUPPORTED_FILE, "There is no text in it.")


def part(whole: IngestedPart, first: int, last: int, plan: str = "plan") -> IngestedPart:
    counts = whole.embeddings.token_counts[first:last]
    sparse = whole.embeddings.sparse[first:last]
    return IngestedPart(
        whole.chunks[first:last], Embeddings(whole.embeddings.dense[first:last], counts, sparse), whole.total, plan
    )


def found(stores: LocalStores, query: Any, limit: int = 10, where: Any = None, store_id: str = STORE) -> list[str]:
    """The files of the hits, best first."""
    return [hit.file_id for hit in stores.search(OWNER, store_id, query, model=MODEL, limit=limit, where=where)]


class StoresContract:
    """The contract."""

    # --- files ------------------------------------------------------------------------------------------------------

    def test_a_file_comes_back_as_it_was_created(self, stores: LocalStores) -> None:
        record = replace(file_record("file-1"), filename="Über 'uns' \U0001f600.txt", expires_at=2_000)
        assert stores.create_file(record) == record
        assert stores.get_file(OWNER, "file-1") == record

    def test_files_are_listed_by_purpose(self, stores: LocalStores) -> None:
        stores.create_file(file_record("file-1"))
        stores.create_file(file_record("file-2", purpose="batch"))
        assert [file.id for file in stores.list_files(OWNER, PageRequest(), purpose="batch").items] == ["file-2"]

    def test_a_deleted_file_leaves_every_store(self, store: LocalStores) -> None:
        store.create_store(store_record("vs_two"))
        fill(store, "file-1", axis(0))
        store.attach(OWNER, "vs_two", NewAttachment("file-1"))
        store.keep(job("file-1", "vs_two"), ingested(axis(0)))
        assert found(store, axis(0)) == found(store, axis(0), store_id="vs_two") == ["file-1"]
        store.delete_file(OWNER, "file-1")
        for store_id in (STORE, "vs_two"):
            assert found(store, axis(0), store_id=store_id) == []
            assert store.get_store(OWNER, store_id).file_counts.total == 0
            with pytest.raises(NotFound):
                store.get_attachment(OWNER, store_id, "file-1")
        with pytest.raises(NotFound, match="No such File object: file-1"):
            store.delete_file(OWNER, "file-1")

    # --- vector stores ----------------------------------------------------------------------------------------------

    def test_a_store_comes_back_with_its_model(self, stores: LocalStores) -> None:
        record = replace(store_record(), name="", description="d", metadata={"a": "1", "é": ""}, expires_after_days=3)
        assert stores.create_store(record) == record
        assert stores.get_store(OWNER, STORE) == record
        assert stores.get_store(OWNER, STORE).model == MODEL

    def test_changes_touch_what_they_name_and_move_the_activity(self, store: LocalStores, clock: Any) -> None:
        clock.now += 7
        store.update_store(OWNER, STORE, {"name": "land", "metadata": {"k": "v"}, "expires_after_days": 2})
        changed = store.update_store(OWNER, STORE, {"metadata": None})
        assert (changed.name, changed.metadata, changed.expires_after_days) == ("land", None, 2)
        assert (changed.created_at, changed.last_active_at) == (1_000, 1_007)
        with pytest.raises(InvalidRequest):
            store.update_store(OWNER, STORE, {"owner": "ben"})

    def test_a_deleted_store_is_gone_and_its_files_are_not(self, store: LocalStores) -> None:
        fill(store, "file-1", axis(0))
        assert found(store, axis(0)) == ["file-1"]
        store.delete_store(OWNER, STORE)
        for call in (lambda: store.get_store(OWNER, STORE), lambda: found(store, axis(0))):
            with pytest.raises(NotFound, match=f"No such vector store: {STORE}"):
                call()
        assert store.get_file(OWNER, "file-1").id == "file-1"
        assert not store.keep(job("file-1"), ingested(axis(0)))
        assert store.stats()["chunks"] == 0

    def test_an_unknown_file_is_a_failed_entry_of_a_new_store(self, stores: LocalStores) -> None:
        stores.create_file(file_record("file-1"))
        files = [NewAttachment("file-1", {"a": 1}), NewAttachment("file-none"), NewAttachment("file-1", {"a": 2})]
        created = stores.create_store(store_record(), files)
        assert created.file_counts == FileCounts(in_progress=1, failed=1)
        failed = stores.get_attachment(OWNER, STORE, "file-none")
        assert failed.last_error == FileError(ErrorCode.INVALID_FILE, "No such File object: file-none")
        assert stores.get_attachment(OWNER, STORE, "file-1").attributes == {"a": 1}
        assert [pending.file_id for pending in stores.pending_jobs()] == ["file-1"]
        stores.detach(OWNER, STORE, "file-none")
        assert stores.get_store(OWNER, STORE).file_counts.total == 1

    # --- owners -----------------------------------------------------------------------------------------------------

    def test_foreign_ids_are_unknown_ids(self, store: LocalStores) -> None:
        fill(store, "file-1", axis(0))
        page, other = PageRequest(), "ben"

        def calls(owner: str, store_id: str, file_id: str) -> list[Any]:
            return [
                lambda: store.get_store(owner, store_id),
                lambda: store.update_store(owner, store_id, {"name": "x"}),
                lambda: store.attach(owner, store_id, NewAttachment(file_id)),
                lambda: store.get_attachment(owner, store_id, file_id),
                lambda: store.list_attachments(owner, store_id, page),
                lambda: store.set_attributes(owner, store_id, file_id, {}),
                lambda: store.detach(owner, store_id, file_id),
                lambda: store.search(owner, store_id, axis(0), model=MODEL, limit=1),
                lambda: store.delete_store(owner, store_id),
                lambda: store.get_file(owner, file_id),
                lambda: store.delete_file(owner, file_id),
            ]

        def refusal(call: Any) -> tuple[str, str | None]:
            with pytest.raises(NotFound) as caught:
                call()
            return caught.value.message, caught.value.param

        for foreign, unknown in zip(calls(other, STORE, "file-1"), calls(OWNER, "vs_none", "file-none"), strict=True):
            message, param = refusal(unknown)
            expected = message.replace("vs_none", STORE).replace("file-none", "file-1")
            assert refusal(foreign) == (expected, param)
        assert store.list_files(other, page).items == store.list_stores(other, page).items == ()
        store.create_store(store_record("vs_ben", owner=other))
        with pytest.raises(NotFound, match="No such File object: file-1"):
            store.attach(other, "vs_ben", NewAttachment("file-1"))
        assert found(store, axis(0)) == ["file-1"]

    # --- attachments ------------------------------------------------------------------------------------------------

    def test_an_attachment_waits_to_be_ingested_and_completes(self, store: LocalStores, clock: Any) -> None:
        store.create_file(file_record("file-1"))
        clock.now += 5
        attributes = {"int": 1, "float": 1.0, "flag": True, "text": "1", "big": 2**53, "tiny": 5e-324}
        attached = store.attach(OWNER, STORE, NewAttachment("file-1", attributes, ChunkingStrategy(200, 50)))
        assert attached.status is FileStatus.IN_PROGRESS
        assert (attached.created_at, attached.usage_bytes, attached.last_error) == (1_005, 0, None)
        assert attached.chunking == ChunkingStrategy(200, 50)
        assert [type(value) for value in attached.attributes.values()] == [int, float, bool, str, int, float]
        assert attached.attributes == attributes
        pending = store.pending_jobs()
        assert pending == [replace(job("file-1"), chunking=ChunkingStrategy(200, 50))]
        file = ingested(np.concatenate([axis(0), axis(1)]))
        assert store.keep(pending[0], file)
        done = store.get_attachment(OWNER, STORE, "file-1")
        assert done.status is FileStatus.COMPLETED
        assert done.usage_bytes == sum(len(chunk.text.encode()) for chunk in file.chunks)
        record = store.get_store(OWNER, STORE)
        assert (record.file_counts, record.usage_bytes) == (FileCounts(completed=1), done.usage_bytes)
        assert store.pending_jobs() == []

    def test_attaching_again_gives_the_existing_attachment_unchanged(self, store: LocalStores) -> None:
        fill(store, "file-1", axis(0), {"state": "draft"})
        before = store.get_attachment(OWNER, STORE, "file-1")
        again = store.attach(OWNER, STORE, NewAttachment("file-1", {"state": "final"}, ChunkingStrategy(100, 0)))
        assert again == before
        assert store.pending_jobs() == []

    def test_parallel_attaches_make_one_attachment(self, store: LocalStores) -> None:
        store.create_file(file_record("file-1"))
        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(lambda _: store.attach(OWNER, STORE, NewAttachment("file-1")), range(8)))
        assert all(result == results[0] for result in results)
        assert store.keep(job("file-1"), ingested(units(np.random.default_rng(0), 3)))
        assert store.get_store(OWNER, STORE).file_counts == FileCounts(completed=1)
        assert len(found(store, axis(0))) == 3

    def test_a_job_that_runs_twice_does_not_double_the_chunks(self, store: LocalStores) -> None:
        fill(store, "file-1", axis(0), text="old")
        assert found(store, axis(0)) == ["file-1"]
        assert not store.keep(job("file-1"), ingested(axis(0), "new"))
        hits = store.search(OWNER, STORE, axis(0), model=MODEL, limit=10)
        assert [hit.chunk.text for hit in hits] == ["old 0 é"]
        assert store.stats()["chunks"] == 1

    # --- parts ------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("searched", [True, False])
    def test_a_file_is_found_when_its_last_part_is_there(self, store: LocalStores, searched: bool) -> None:
        whole = ingested(units(np.random.default_rng(5), 7))
        store.create_file(file_record("file-1"))
        store.attach(OWNER, STORE, NewAttachment("file-1"))
        for kept, piece in ((0, part(whole, 0, 3)), (3, part(whole, 3, 5)), (5, part(whole, 5, 7))):
            begun = store.begin(job("file-1"))
            assert (begun.kept, begun.plan) == (kept, "plan" if kept else "")
            if searched:
                assert found(store, axis(0)) == []
            assert store.get_attachment(OWNER, STORE, "file-1").status is FileStatus.IN_PROGRESS
            assert store.get_text(OWNER, STORE, "file-1").chunks == ()
            assert store.keep(begun, piece)
        done = store.get_attachment(OWNER, STORE, "file-1")
        assert (done.status, done.chunk_count, done.token_count) == (FileStatus.COMPLETED, 7, 21)
        assert done.usage_bytes == sum(len(chunk.text.encode()) for chunk in whole.chunks)
        for chunk, vector in zip(whole.chunks, whole.embeddings.dense, strict=True):
            assert store.search(OWNER, STORE, vector[None], model=MODEL, limit=1)[0].chunk == chunk
        assert len(found(store, axis(0))) == 7
        text = store.get_text(OWNER, STORE, "file-1", with_vectors=True)
        assert text.chunks == whole.chunks
        assert np.abs(text.vectors - whole.embeddings.dense).max() < 1e-3

    def test_a_first_part_begins_anew_and_any_other_needs_what_comes_before(self, store: LocalStores) -> None:
        whole = ingested(units(np.random.default_rng(5), 7))
        store.create_file(file_record("file-1"))
        store.attach(OWNER, STORE, NewAttachment("file-1"))
        for wrong in (part(whole, 3, 5), part(whole, 3, 7)):
            with pytest.raises(StoreUnavailable):
                store.keep(job("file-1"), wrong)
        assert store.keep(job("file-1"), part(whole, 0, 3))
        for wrong in (part(whole, 2, 5), part(whole, 4, 7), part(whole, 3, 5, "other")):
            with pytest.raises(StoreUnavailable):
                store.keep(job("file-1"), wrong)
        assert store.stats()["chunks"] == 3
        assert store.keep(job("file-1"), part(whole, 0, 2, "other"))
        assert store.stats()["chunks"] == 2
        assert store.keep(job("file-1"), part(whole, 2, 7, "other"))
        assert len(found(store, axis(0))) == store.stats()["chunks"] == 7

    @pytest.mark.parametrize("end", ["fail", "detach", "delete_file", "delete_store", "cancel"])
    def test_parts_of_a_file_that_is_given_up_are_removed(self, store: LocalStores, end: str) -> None:
        store.create_file(file_record("file-1"))
        store.create_batch(OWNER, FileBatch("vsfb_1", STORE, 1_000), [NewAttachment("file-1")])
        assert store.keep(job("file-1"), part(ingested(units(np.random.default_rng(5), 7)), 0, 3))
        actions: dict[str, Callable[[], object]] = {
            "fail": lambda: store.fail(job("file-1"), FAILURE),
            "detach": lambda: store.detach(OWNER, STORE, "file-1"),
            "delete_file": lambda: store.delete_file(OWNER, "file-1"),
            "delete_store": lambda: store.delete_store(OWNER, STORE),
            "cancel": lambda: store.cancel_batch(OWNER, STORE, "vsfb_1"),
        }
        actions[end]()
        assert store.stats()["chunks"] == 0
        assert store.begin(job("file-1")) is None
        assert not store.keep(job("file-1"), ingested(axis(0)))
        assert store.pending_jobs() == []
        if end != "delete_store":
            assert store.get_store(OWNER, STORE).usage_bytes == 0

    # --- batches ----------------------------------------------------------------------------------------------------

    def test_a_batch_counts_its_files_and_lists_them(self, store: LocalStores) -> None:
        for number in range(4):
            store.create_file(file_record(f"file-{number}"))
        store.attach(OWNER, STORE, NewAttachment("file-3"))
        store.attach(OWNER, STORE, NewAttachment("file-0", {"state": "first"}))
        files = [NewAttachment(f"file-{number}", {"state": "batch"}) for number in (0, 1, 2)]
        batch = FileBatch("vsfb_1", STORE, 1_000)
        made = store.create_batch(OWNER, batch, [*files, NewAttachment("file-none")])
        assert made == replace(batch, file_counts=FileCounts(in_progress=3, failed=1))
        assert made.status is FileStatus.IN_PROGRESS
        assert store.keep(job("file-1"), ingested(axis(1)))
        page = PageRequest(limit=10, order="asc")
        listed = store.list_attachments(OWNER, STORE, page, batch_id="vsfb_1").items
        assert [item.file_id for item in listed] == ["file-0", "file-1", "file-2", "file-none"]
        assert [item.attributes.get("state") for item in listed] == ["first", "batch", "batch", None]
        failed = store.list_attachments(OWNER, STORE, page, status=FileStatus.FAILED, batch_id="vsfb_1").items
        assert [item.last_error.code for item in failed] == [ErrorCode.INVALID_FILE]
        assert store.get_batch(OWNER, STORE, "vsfb_1").file_counts == FileCounts(2, 1, 1, 0)
        assert [pending.batch_id for pending in store.pending_jobs() if pending.file_id == "file-2"] == ["vsfb_1"]

    def test_a_cancelled_batch_keeps_what_is_done_and_what_it_did_not_attach(self, store: LocalStores) -> None:
        for number in range(3):
            store.create_file(file_record(f"file-{number}"))
        store.attach(OWNER, STORE, NewAttachment("file-0"))
        batch = FileBatch("vsfb_1", STORE, 1_000)
        store.create_batch(OWNER, batch, [NewAttachment(f"file-{number}") for number in range(3)])
        store.keep(job("file-1"), ingested(axis(1)))
        cancelled = store.cancel_batch(OWNER, STORE, "vsfb_1")
        assert cancelled.status is FileStatus.CANCELLED
        assert cancelled.file_counts == FileCounts(in_progress=1, completed=1, cancelled=1)
        assert store.cancel_batch(OWNER, STORE, "vsfb_1") == cancelled
        assert found(store, axis(1)) == ["file-1"]
        assert [pending.file_id for pending in store.pending_jobs()] == ["file-0"]
        assert store.keep(job("file-0"), ingested(axis(0)))

    def test_a_batch_that_has_ended_cannot_be_cancelled_any_more(self, store: LocalStores) -> None:
        store.create_file(file_record("file-1"))
        store.create_batch(OWNER, FileBatch("vsfb_1", STORE, 1_000), [NewAttachment("file-1")])
        store.keep(job("file-1"), ingested(axis(1)))
        assert store.cancel_batch(OWNER, STORE, "vsfb_1").status is FileStatus.COMPLETED

    def test_a_batch_belongs_to_one_store_of_one_owner(self, store: LocalStores) -> None:
        store.create_store(store_record("vs_two"))
        store.create_file(file_record("file-1"))
        store.create_batch(OWNER, FileBatch("vsfb_1", STORE, 1_000), [NewAttachment("file-1")])
        for owner, store_id, batch_id in (
            (OWNER, "vs_two", "vsfb_1"),
            ("ben", STORE, "vsfb_1"),
            (OWNER, STORE, "vsfb_2"),
        ):
            for call in (
                store.get_batch,
                store.cancel_batch,
                lambda *where: store.list_attachments(where[0], where[1], PageRequest(), batch_id=where[2]),
            ):
                with pytest.raises(NotFound):
                    call(owner, store_id, batch_id)

    def test_a_batch_of_many_files_is_attached_as_one(self, store: LocalStores) -> None:
        files = [NewAttachment(f"file-{number}", {"n": number}) for number in range(2_000)]
        for new in files[:1_000]:
            store.create_file(file_record(new.file_id))
        made = store.create_batch(OWNER, FileBatch("vsfb_1", STORE, 1_000), files)
        assert made.file_counts == FileCounts(in_progress=1_000, failed=1_000)
        assert store.get_store(OWNER, STORE).file_counts == made.file_counts

    def test_old_batches_are_forgotten_and_their_files_are_not(self, store: LocalStores, clock: Any) -> None:
        store.create_file(file_record("file-1"))
        store.create_file(file_record("file-2"))
        store.create_batch(OWNER, FileBatch("vsfb_1", STORE, int(clock.now)), [NewAttachment("file-1")])
        store.create_batch(OWNER, FileBatch("vsfb_2", STORE, int(clock.now)), [NewAttachment("file-2")])
        store.keep(job("file-1"), ingested(axis(1)))
        assert store.purge_batches(100) == 0
        clock.now += 101
        assert store.purge_batches(100) == 1  # the other one is not done
        with pytest.raises(NotFound):
            store.get_batch(OWNER, STORE, "vsfb_1")
        assert store.get_batch(OWNER, STORE, "vsfb_2").status is FileStatus.IN_PROGRESS
        assert found(store, axis(1)) == ["file-1"]

    # --- uploads that expire ----------------------------------------------------------------------------------------

    def test_an_upload_that_expires_leaves_its_copies_in_stores(self, store: LocalStores, clock: Any) -> None:
        for file_id in ("file-1", "file-2", "file-3"):
            store.create_file(replace(file_record(file_id), expires_at=int(clock.now) + 100))
        store.create_file(file_record("file-4"))
        store.attach(OWNER, STORE, NewAttachment("file-1"))
        store.keep(job("file-1"), ingested(axis(0)))
        store.attach(OWNER, STORE, NewAttachment("file-2"))
        assert store.purge_uploads() == []
        clock.now += 100
        assert sorted(store.purge_uploads()) == ["file-1", "file-3"]  # the other one is being ingested
        assert [item.id for item in store.list_files(OWNER, PageRequest(order="asc")).items] == ["file-2", "file-4"]
        assert found(store, axis(0)) == ["file-1"]
        assert store.get_text(OWNER, STORE, "file-1").chunks
        assert store.unknown_files(["file-1", "file-2", "file-9"]) == ["file-1", "file-9"]
        store.keep(job("file-2"), ingested(axis(1)))
        assert store.purge_uploads() == ["file-2"]

    def test_a_job_whose_attachment_is_gone_writes_nothing(self, store: LocalStores) -> None:
        store.create_file(file_record("file-1"))
        store.attach(OWNER, STORE, NewAttachment("file-1"))
        store.detach(OWNER, STORE, "file-1")
        assert not store.keep(job("file-1"), ingested(axis(0)))
        store.fail(job("file-1"), FAILURE)
        assert store.stats()["chunks"] == 0
        # Attached again with other sizes, the old job is still not its own.
        store.attach(OWNER, STORE, NewAttachment("file-1", chunking=ChunkingStrategy(100, 0)))
        assert not store.keep(job("file-1"), ingested(axis(0)))
        assert store.get_attachment(OWNER, STORE, "file-1").status is FileStatus.IN_PROGRESS

    def test_a_failure_says_why_and_costs_nothing(self, store: LocalStores) -> None:
        store.create_file(file_record("file-1"))
        store.attach(OWNER, STORE, NewAttachment("file-1"))
        store.fail(job("file-1"), FAILURE)
        failed = store.get_attachment(OWNER, STORE, "file-1")
        assert (failed.status, failed.last_error, failed.usage_bytes) == (FileStatus.FAILED, FAILURE, 0)
        assert store.get_store(OWNER, STORE).file_counts == FileCounts(failed=1)
        assert store.pending_jobs() == []

    def test_a_completed_file_does_not_fail_any_more(self, store: LocalStores) -> None:
        fill(store, "file-1", axis(0))
        store.fail(job("file-1"), FAILURE)
        assert store.get_attachment(OWNER, STORE, "file-1").status is FileStatus.COMPLETED

    def test_attempts_are_counted(self, store: LocalStores) -> None:
        store.create_file(file_record("file-1"))
        store.attach(OWNER, STORE, NewAttachment("file-1"))
        store.retry(job("file-1"))
        store.retry(job("file-1"))
        assert store.pending_jobs() == [job("file-1", attempt=2)]
        store.retry(job("file-1", attempt=2))
        assert store.pending_jobs() == [job("file-1", attempt=3)]

    def test_vectors_of_another_dimension_are_refused_and_nothing_is_written(self, store: LocalStores) -> None:
        fill(store, "file-1", axis(0))
        store.create_file(file_record("file-2"))
        store.attach(OWNER, STORE, NewAttachment("file-2"))
        with pytest.raises(ModelMismatch, match=f"{DIMENSION}.* 3"):
            store.keep(job("file-2"), ingested(axis(0, 3)))
        with pytest.raises(ModelFailed):
            store.keep(job("file-2"), ingested(np.full((1, DIMENSION), np.nan, np.float32)))
        assert store.stats()["chunks"] == 1
        assert found(store, axis(0)) == ["file-1"]

    # --- search -----------------------------------------------------------------------------------------------------

    def test_a_hit_carries_everything_about_its_chunk(self, store: LocalStores) -> None:
        file = ingested(units(np.random.default_rng(0), 4), "body")
        store.create_file(file_record("file-1"))
        store.attach(OWNER, STORE, NewAttachment("file-1", {"n": 1.0, "flag": False}))
        store.keep(job("file-1"), file)
        for expected, vector in zip(file.chunks, file.embeddings.dense, strict=True):
            hit = store.search(OWNER, STORE, vector[None], model=MODEL, limit=1)[0]
            assert hit.chunk == expected
            assert (hit.store_id, hit.file_id, hit.filename) == (STORE, "file-1", "file-1.txt")
            assert hit.attributes == {"n": 1.0, "flag": False}
            assert 0.999 < hit.score <= 1.0

    def test_scores_lie_between_zero_and_one_best_first_then_by_chunk(self, store: LocalStores) -> None:
        vectors = np.concatenate([axis(0), -axis(0), axis(1), axis(0), -axis(0)])
        fill(store, "file-1", vectors)
        hits = store.search(OWNER, STORE, axis(0), model=MODEL, limit=10)
        assert [hit.score for hit in hits] == [1.0, 1.0, 0.0, 0.0, 0.0]
        assert [(-hit.score, hit.chunk_id) for hit in hits] == sorted((-hit.score, hit.chunk_id) for hit in hits)

    def test_an_empty_store_finds_nothing(self, store: LocalStores) -> None:
        assert found(store, axis(0)) == []
        assert found(store, axis(0), where=Comparison("a", "ne", 1)) == []

    def test_several_queries_give_each_chunk_once(self, store: LocalStores) -> None:
        fill(store, "file-1", axis(0))
        fill(store, "file-2", axis(1))
        queries = np.concatenate([axis(1), axis(0), axis(1)])
        hits = store.search(OWNER, STORE, queries, model=MODEL, limit=10)
        assert [(hit.file_id, hit.query_index, hit.score) for hit in hits] == [("file-1", 1, 1.0), ("file-2", 0, 1.0)]

    def test_names_stay_right_after_a_removal(self, store: LocalStores) -> None:
        for number in range(5):
            fill(store, f"file-{number}", axis(number))
        assert found(store, axis(1), 1) == ["file-1"]
        store.detach(OWNER, STORE, "file-1")
        fill(store, "file-5", axis(5))
        for number in (0, 2, 3, 4, 5):
            hit = store.search(OWNER, STORE, axis(number), model=MODEL, limit=1)[0]
            assert (hit.file_id, hit.chunk.text) == (f"file-{number}", f"file-{number} 0 é")
        assert "file-1" not in found(store, axis(1))
        store.attach(OWNER, STORE, NewAttachment("file-1"))
        assert "file-1" not in found(store, axis(1))

    def test_few_allowed_chunks_are_found_however_far_away(self, store: LocalStores) -> None:
        rng = np.random.default_rng(5)
        near = axis(0) + 0.05 * units(rng, 5_000)
        fill(store, "baking", near / np.linalg.norm(near, axis=1, keepdims=True), {"rare": False})
        for number in range(3):
            fill(store, f"tide-{number}", -axis(0) + 0.1 * axis(number + 1), {"rare": True})
        where = Comparison("rare", "eq", True)
        assert sorted(found(store, axis(0), where=where)) == ["tide-0", "tide-1", "tide-2"]
        for query in units(rng, 20):
            assert sorted(found(store, query[None], where=where)) == ["tide-0", "tide-1", "tide-2"]

    def test_changed_attributes_count_at_once(self, store: LocalStores) -> None:
        fill(store, "file-1", axis(0), {"state": "draft"})
        draft, final = Comparison("state", "eq", "draft"), Comparison("state", "eq", "final")
        assert found(store, axis(0), where=draft) == ["file-1"]
        changed = store.set_attributes(OWNER, STORE, "file-1", {"state": "final"})
        assert changed.attributes == {"state": "final"}
        assert found(store, axis(0), where=draft) == []
        assert found(store, axis(0), where=final) == ["file-1"]
        assert store.search(OWNER, STORE, axis(0), model=MODEL, limit=1)[0].attributes == {"state": "final"}

    def test_attributes_of_another_store_do_not_matter(self, store: LocalStores) -> None:
        store.create_store(store_record("vs_two"))
        fill(store, "file-1", axis(0), {"a": 1})
        store.attach(OWNER, "vs_two", NewAttachment("file-1", {"a": 2}))
        store.keep(job("file-1", "vs_two"), ingested(axis(0)))
        assert found(store, axis(0), where=Comparison("a", "eq", 2)) == []
        assert found(store, axis(0), where=Comparison("a", "eq", 2), store_id="vs_two") == ["file-1"]

    def test_a_query_of_another_dimension_is_refused_with_both_sizes(self, store: LocalStores) -> None:
        with pytest.raises(ModelMismatch, match=f"{DIMENSION} dimensions.* 3"):
            store.search(OWNER, STORE, axis(0, 3), model=MODEL, limit=1)

    @pytest.mark.parametrize("other", [{"id": "another"}, {"revision": "r2"}, {"dimension": 3}])
    def test_a_query_of_another_model_is_refused_with_both_names(self, store: LocalStores, other: Any) -> None:
        served = replace(MODEL, **other)
        with pytest.raises(ModelMismatch) as caught:
            store.search(OWNER, STORE, axis(0, served.dimension), model=served, limit=1)
        for model in (MODEL, served):
            assert f"'{model.id}' (revision {model.revision}, {model.dimension} dimensions)" in caught.value.message

    def test_a_query_that_is_not_finite_is_refused(self, store: LocalStores) -> None:
        with pytest.raises(ModelFailed):
            store.search(OWNER, STORE, axis(0) * np.nan, model=MODEL, limit=1)

    def test_a_search_moves_the_activity(self, store: LocalStores, clock: Any) -> None:
        clock.now += 60
        found(store, axis(0))
        assert store.get_store(OWNER, STORE).last_active_at == 1_060
        assert store.list_stores(OWNER, PageRequest()).items[0].last_active_at == 1_060

    # --- lists ------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("order", ["asc", "desc"])
    def test_pages_cover_many_items_of_one_second(self, store: LocalStores, order: str) -> None:
        ids = [f"file-{number:02}" for number in range(25)]
        for file_id in ids:
            store.create_file(file_record(file_id, created_at=1_000 + (file_id > "file-12")))
            store.attach(OWNER, STORE, NewAttachment(file_id))
            store.create_store(store_record(f"vs_{file_id}"))
        expected = ids if order == "asc" else ids[::-1]
        stores_expected = [STORE, *(f"vs_{file_id}" for file_id in ids)]
        stores_expected = sorted(stores_expected, reverse=order == "desc")
        lists: list[tuple[Any, list[str]]] = [
            (lambda page: [store.list_files(OWNER, page), "id"], expected),
            (lambda page: [store.list_attachments(OWNER, STORE, page), "file_id"], expected),
            (
                lambda page: [
                    store.list_attachments(OWNER, STORE, page, status=FileStatus.IN_PROGRESS),
                    "file_id",
                ],
                expected,
            ),
            (lambda page: [store.list_stores(OWNER, page), "id"], stores_expected),
        ]
        for listing, names in lists:
            assert walk(listing, order, "after") == names
            assert walk(listing, order, "before") == names

    def test_before_and_after_together_bound_a_page(self, stores: LocalStores) -> None:
        for number in range(6):
            stores.create_file(file_record(f"file-{number}"))
        page = stores.list_files(OWNER, PageRequest(order="asc", after="file-1", before="file-4"))
        assert [item.id for item in page.items] == ["file-2", "file-3"]
        assert not page.has_more

    @pytest.mark.parametrize("side", ["after", "before"])
    def test_an_unknown_cursor_is_refused(self, store: LocalStores, side: str) -> None:
        request = replace(PageRequest(), **{side: "file-none"})
        for call in (
            lambda: store.list_files(OWNER, request),
            lambda: store.list_stores(OWNER, request),
            lambda: store.list_attachments(OWNER, STORE, request),
        ):
            with pytest.raises(InvalidRequest) as caught:
                call()
            assert caught.value.param == side

    def test_attachments_are_listed_by_status(self, store: LocalStores) -> None:
        fill(store, "file-1", axis(0))
        store.create_file(file_record("file-2"))
        store.attach(OWNER, STORE, NewAttachment("file-2"))
        store.fail(job("file-2"), FAILURE)
        listed = store.list_attachments(OWNER, STORE, PageRequest(), status=FileStatus.FAILED).items
        assert [(item.file_id, item.last_error) for item in listed] == [("file-2", FAILURE)]


def walk(listing: Any, order: str, side: str) -> list[str]:
    """Every item's id, page by page, in the order of the list; backwards where `side` is before."""
    seen: list[str] = []
    request = PageRequest(limit=10, order=order)
    if side == "before":  # begin at the last item, which no page before it holds
        page, name = listing(replace(request, limit=100))
        last = getattr(page.items[-1], name)
        seen, request = [last], replace(request, before=last)
    while True:
        page, name = listing(request)
        names = [getattr(item, name) for item in page.items]
        assert len(names) == 10 or not page.has_more
        seen = seen + names if side == "after" else names + seen
        if not page.has_more:
            return seen
        request = replace(request, **{side: names[-1] if side == "after" else names[0]})
