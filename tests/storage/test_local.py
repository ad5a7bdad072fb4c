"""The store in one process: the contract, and what is its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rag.errors import InvalidRequest, NotFound, RagError, StoreLocked, StoreUnavailable
from rag.filters import Comparison
from rag.types import FileCounts, NewAttachment, PageRequest
from storage import catalog
from storage.local import LocalStores
from storage.settings import IndexSettings, StorageSettings
from tests.storage.contract import FAILURE, StoresContract, found, part
from tests.storage.made import MODEL, OWNER, STORE, axis, file_record, fill, ingested, job, store_record, units


class TestLocalStores(StoresContract):
    """The contract."""


def reopen(stores: LocalStores, path: Path, **settings: Any) -> LocalStores:
    stores.close()
    return LocalStores(path, StorageSettings(lock_wait_s=0, **settings), threads=1)


def test_everything_is_there_after_a_restart(tmp_path: Path, clock: Any) -> None:
    first = LocalStores(tmp_path, threads=1, clock=clock)
    first.create_store(store_record())
    rng = np.random.default_rng(1)
    for number in range(5):
        fill(first, f"file-{number}", units(rng, 4), {"n": number, "half": 0.5, "flag": True})
    query = units(rng, 1)
    clock.now += 99
    hits = first.search(OWNER, STORE, query, model=MODEL, limit=20)
    attachments = first.list_attachments(OWNER, STORE, PageRequest())
    record = first.get_store(OWNER, STORE)
    assert record.last_active_at == 1_099
    second = reopen(first, tmp_path)
    assert second.get_store(OWNER, STORE) == record
    assert second.list_attachments(OWNER, STORE, PageRequest()) == attachments
    again = second.search(OWNER, STORE, query, model=MODEL, limit=20)
    assert [replace(hit, score=0) for hit in again] == [replace(hit, score=0) for hit in hits]
    np.testing.assert_allclose([hit.score for hit in again], [hit.score for hit in hits], atol=1e-6)
    second.close()


@pytest.mark.parametrize("tail", [1, 100])
def test_of_equal_chunks_the_first_are_found_whichever_file_was_completed_first(tmp_path: Path, tail: int) -> None:
    stores = LocalStores(tmp_path, StorageSettings(index=IndexSettings(tail=tail)), threads=1)
    stores.create_store(store_record())
    slow = ingested(np.repeat(axis(0), 5, axis=0))
    assert found(stores, axis(0)) == []  # from now on the index grows with each file
    stores.create_file(file_record("file-slow"))
    stores.attach(OWNER, STORE, NewAttachment("file-slow"))
    assert stores.keep(job("file-slow"), part(slow, 0, 2))
    fill(stores, "file-fast", np.repeat(axis(0), 3, axis=0))
    assert stores.keep(job("file-slow"), part(slow, 2, 5))
    whole = [hit.chunk_id for hit in stores.search(OWNER, STORE, axis(0), model=MODEL, limit=8)]
    for limit in range(1, 8):
        hits = stores.search(OWNER, STORE, axis(0), model=MODEL, limit=limit)
        assert [hit.chunk_id for hit in hits] == whole[:limit]
    stores.detach(OWNER, STORE, "file-slow")
    assert found(stores, axis(0)) == ["file-fast"] * 3
    stores.close()


def test_a_second_owner_in_the_same_process_is_refused(store: LocalStores, tmp_path: Path) -> None:
    with pytest.raises(StoreLocked, match="process"):
        LocalStores(tmp_path / "data", StorageSettings(lock_wait_s=0))


def test_after_closing_writes_are_refused_and_closing_again_is_fine(tmp_path: Path) -> None:
    stores = LocalStores(tmp_path)
    stores.close()
    stores.close()
    with pytest.raises(StoreUnavailable):
        stores.create_file(file_record("file-1"))


def test_chunk_ids_are_never_used_again(tmp_path: Path) -> None:
    stores = LocalStores(tmp_path)
    stores.create_store(store_record())
    fill(stores, "file-1", units(np.random.default_rng(0), 3))
    highest = max(hit.chunk_id for hit in stores.search(OWNER, STORE, axis(0), model=MODEL, limit=3))
    stores.detach(OWNER, STORE, "file-1")
    stores = reopen(stores, tmp_path)
    fill(stores, "file-2", units(np.random.default_rng(0), 3))
    assert min(hit.chunk_id for hit in stores.search(OWNER, STORE, axis(0), model=MODEL, limit=3)) > highest
    stores.close()


def test_a_failed_write_leaves_nothing_behind_and_the_next_one_works(
    store: LocalStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create_file(file_record("file-1"))
    store.attach(OWNER, STORE, NewAttachment("file-1"))

    def broken(*_: object) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr("storage.ingestion.count_part", broken)
        with pytest.raises(OSError, match="disk full"):
            store.keep(job("file-1"), ingested(axis(0)))
    assert store.stats()["chunks"] == 0
    assert found(store, axis(0)) == []
    assert store.keep(job("file-1"), ingested(axis(0)))
    assert found(store, axis(0)) == ["file-1"]


def test_a_search_that_loses_a_winner_to_a_deletion_still_fills_its_page(
    store: LocalStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        fill(store, f"file-{number}", axis(0) + 0.1 * number * axis(1))
    assert found(store, axis(0), 2) == ["file-0", "file-1"]
    fetch, raced = store._fetch, threading.Event()

    def fetch_after_a_deletion(*args: Any) -> Any:
        if not raced.is_set():
            raced.set()
            store.detach(OWNER, STORE, "file-0")
        return fetch(*args)

    monkeypatch.setattr(store, "_fetch", fetch_after_a_deletion)
    assert found(store, axis(0), 2) == ["file-1", "file-2"]


def test_attributes_that_change_during_a_search_never_contradict_its_filter(
    store: LocalStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, "file-0", axis(0), {"team": "sea"})
    fill(store, "file-1", axis(0), {"team": "land"})
    found(store, axis(0))
    matching, raced = catalog.matching, threading.Event()

    def matching_after_a_change(*args: Any) -> Any:
        if not raced.is_set():
            raced.set()
            store.set_attributes(OWNER, STORE, "file-0", {"team": "land"})
        return matching(*args)

    monkeypatch.setattr(catalog, "matching", matching_after_a_change)
    hits = store.search(OWNER, STORE, axis(0), model=MODEL, limit=10, where=Comparison("team", "eq", "land"))
    assert [(hit.file_id, hit.attributes) for hit in hits] == [
        ("file-0", {"team": "land"}),
        ("file-1", {"team": "land"}),
    ]


def test_searches_beside_writes_always_fill_their_page(tmp_path: Path) -> None:
    settings = StorageSettings(index=IndexSettings(tail=8))
    stores = LocalStores(tmp_path, settings, threads=1)
    stores.create_store(store_record())
    rng = np.random.default_rng(3)
    for number in range(10):
        fill(stores, f"keep-{number}", units(rng, 2), {"keep": True})
    done = threading.Event()

    def churn() -> None:
        for number in range(25):
            fill(stores, f"churn-{number}", units(rng, 3), {"keep": False})
            stores.detach(OWNER, STORE, f"churn-{number}")
        done.set()

    def search(seed: int) -> int:
        own = np.random.default_rng(seed)
        count = 0
        while not done.is_set():
            hits = stores.search(OWNER, STORE, units(own, 1), model=MODEL, limit=12)
            assert len(hits) == 12
            assert len({hit.chunk_id for hit in hits}) == 12
            kept = stores.search(
                OWNER, STORE, units(own, 1), model=MODEL, limit=50, where=Comparison("keep", "eq", True)
            )
            assert len(kept) == 20
            count += 1
        return count

    with ThreadPoolExecutor(3) as pool:
        writer = pool.submit(churn)
        searches = [pool.submit(search, seed) for seed in (1, 2)]
        writer.result()
        assert all(task.result() > 0 for task in searches)
    assert stores.get_store(OWNER, STORE).file_counts == FileCounts(completed=10)
    stores.close()


def test_an_index_opened_during_writes_misses_none(tmp_path: Path) -> None:
    stores = LocalStores(tmp_path, threads=1)
    stores.create_store(store_record())
    rng = np.random.default_rng(4)
    for number in range(20):
        fill(stores, f"file-{number}", units(rng, 5))
    stores = reopen(stores, tmp_path)
    with ThreadPoolExecutor(4) as pool:
        searches = [pool.submit(found, stores, units(rng, 1), 500) for _ in range(3)]
        for number in range(20, 30):
            fill(stores, f"file-{number}", units(rng, 5))
        for number in range(5):
            stores.detach(OWNER, STORE, f"file-{number}")
        assert all(len(task.result()) >= 75 for task in searches)
    assert len(found(stores, units(rng, 1), 500)) == 125
    stores.close()


def test_stats_count_rows_and_index(store: LocalStores) -> None:
    rng = np.random.default_rng(0)
    fill(store, "file-1", units(rng, 3))
    fill(store, "file-2", units(rng, 2))
    found(store, axis(0))
    store.detach(OWNER, STORE, "file-2")
    store.create_file(file_record("file-3"))
    store.attach(OWNER, STORE, NewAttachment("file-3"))
    stats = store.stats()
    assert {name: stats[name] for name in ("files", "vector_stores", "attachments", "pending", "chunks")} == {
        "files": 3,
        "vector_stores": 1,
        "attachments": 2,
        "pending": 1,
        "chunks": 3,
    }
    assert (stats["indexed_live"], stats["indexed_dead"]) == (3, 2)
    assert stats["bytes_on_disk"] > 0


def test_disk_use_follows_the_data(tmp_path: Path) -> None:
    stores = LocalStores(tmp_path, threads=1)
    stores.create_store(store_record())
    rng = np.random.default_rng(0)
    sizes = []
    for number in range(40):
        fill(stores, f"file-{number}", units(rng, 50), text="x" * 4_000)
        stores.delete_file(OWNER, f"file-{number}")
        if number in (0, 39):
            stores.checkpoint()
            sizes.append(stores.stats()["bytes_on_disk"])
    assert sizes[1] <= 3 * sizes[0]
    stores.close()


READS: dict[str, Callable[[LocalStores], object]] = {
    "get_file": lambda stores: stores.get_file(OWNER, "file-0"),
    "get_file, missing": lambda stores: stores.get_file(OWNER, "file-none"),
    "list_files": lambda stores: stores.list_files(OWNER, PageRequest(limit=1)),
    "list_files, after": lambda stores: stores.list_files(OWNER, PageRequest(limit=1, after="file-0")),
    "get_store": lambda stores: stores.get_store(OWNER, STORE),
    "get_store, missing": lambda stores: stores.get_store(OWNER, "vs_none"),
    "list_stores": lambda stores: stores.list_stores(OWNER, PageRequest(limit=1)),
    "get_attachment": lambda stores: stores.get_attachment(OWNER, STORE, "file-0"),
    "get_attachment, missing": lambda stores: stores.get_attachment(OWNER, STORE, "file-none"),
    "list_attachments": lambda stores: stores.list_attachments(OWNER, STORE, PageRequest(limit=1)),
    "list_attachments, nobody's": lambda stores: stores.list_attachments(OWNER, "vs_none", PageRequest()),
    "search": lambda stores: found(stores, axis(0)),
    "search, filtered": lambda stores: found(stores, axis(0), where=Comparison("eq", "n", 1)),
    "pending_jobs": lambda stores: stores.pending_jobs(),
    "stats": lambda stores: stores.stats(),
}


@pytest.mark.parametrize("read", READS)
def test_a_thread_that_has_read_holds_up_no_checkpoint(tmp_path: Path, read: str) -> None:
    stores = LocalStores(tmp_path, threads=1)
    stores.create_store(store_record())
    fill(stores, "file-0", axis(0), {"n": 0})
    fill(stores, "file-1", axis(0), {"n": 1})
    with ThreadPoolExecutor(1) as reader:
        reader.submit(lambda: stores.get_store(OWNER, STORE)).result()
        with suppress(NotFound):
            reader.submit(lambda: READS[read](stores)).result()
        stores.set_attributes(OWNER, STORE, "file-0", {"n": 2})  # the reader's thread is idle, and still there
        checkpoint = threading.Thread(target=stores.checkpoint, daemon=True)
        checkpoint.start()
        checkpoint.join(20)
        assert not checkpoint.is_alive()
    stores.close()


def test_an_expired_store_loses_its_chunks_and_stays_expired(stores: LocalStores, clock: Any) -> None:
    stores.create_store(replace(store_record(), expires_after_days=1))
    stores.create_store(store_record("vs_for_ever"))
    fill(stores, "file-1", axis(0))
    fill(stores, "file-2", axis(0), store_id="vs_for_ever")
    clock.now += 86_000
    assert found(stores, axis(0)) == ["file-1"]
    clock.now += 86_000
    fill(stores, "file-3", axis(1), store_id="vs_for_ever")  # puts the search on record
    assert stores.purge_expired() == []
    clock.now += 400
    assert stores.purge_expired() == [STORE]
    assert stores.purge_expired() == []
    record = stores.get_store(OWNER, STORE)
    assert record.expires_at == 1_000 + 86_000 + 86_400
    assert (record.usage_bytes, record.file_counts) == (0, FileCounts(completed=1))
    assert stores.stats()["chunks"] == 2
    for call in (
        lambda: found(stores, axis(0)),
        lambda: stores.update_store(OWNER, STORE, {"expires_after_days": None}),
        lambda: stores.attach(OWNER, STORE, NewAttachment("file-2")),
        lambda: stores.set_attributes(OWNER, STORE, "file-1", {}),
    ):
        with pytest.raises(InvalidRequest, match="expired"):
            call()
    stores.detach(OWNER, STORE, "file-1")
    stores.delete_store(OWNER, STORE)
    assert found(stores, axis(0), store_id="vs_for_ever") == ["file-2", "file-3"]


def test_cuda_without_a_gpu_is_an_error_at_the_start(tmp_path: Path) -> None:
    import faiss

    if hasattr(faiss, "get_num_gpus") and faiss.get_num_gpus():
        pytest.skip("there is a GPU")
    with pytest.raises(RagError, match="cuda"):
        LocalStores(tmp_path, StorageSettings(index=IndexSettings(device="cuda")))


def test_a_final_state_is_final(store: LocalStores) -> None:
    store.create_file(file_record("file-1"))
    store.attach(OWNER, STORE, NewAttachment("file-1"))
    store.fail(job("file-1"), FAILURE)
    assert not store.keep(job("file-1"), ingested(axis(0)))
    assert store.get_attachment(OWNER, STORE, "file-1").last_error == FAILURE
    store.detach(OWNER, STORE, "file-1")
    store.attach(OWNER, STORE, NewAttachment("file-1"))
    assert store.keep(job("file-1"), ingested(axis(0)))
    assert store.get_attachment(OWNER, STORE, "file-1").last_error is None
