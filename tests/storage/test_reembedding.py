"""Another model's vectors take the place of the old ones at once, whenever the work is interrupted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rag.errors import ModelMismatch, StoreUnavailable
from rag.types import Embeddings, FileStatus, ModelInfo, NewAttachment, SparseVector
from storage.local import LocalStores
from storage.settings import StorageSettings
from tests.storage.contract import found, part
from tests.storage.made import MODEL, OWNER, STORE, axis, file_record, fill, ingested, job, store_record, units

OTHER = replace(MODEL, id="other", dimension=8)


def vectors(ids: list[int]) -> Embeddings:
    """Of `OTHER`, each id's own."""
    dense = np.concatenate([units(np.random.default_rng(ident), 1, OTHER.dimension) for ident in ids])
    weights = tuple(SparseVector(np.array([ident], np.int32), np.ones(1, np.float32)) for ident in ids)
    return Embeddings(dense, np.ones(len(ids), np.int32), weights)


def work(stores: LocalStores, store_id: str = STORE, model: ModelInfo = OTHER, *, at_once: int = 3) -> int:
    """Everything that is missing; gives how many that were."""
    done = 0
    while batch := stores.chunks_without(store_id, model, at_once):
        ids = [ident for ident, _ in batch]
        stores.keep_vectors(model, ids, vectors(ids))
        done += len(ids)
    return done


@pytest.fixture
def filled(store: LocalStores) -> LocalStores:
    for number in range(3):
        fill(store, f"file-{number}", units(np.random.default_rng(number), 4))
    store.create_store(store_record("vs_two"))
    store.create_file(file_record("file-two"))
    store.attach(OWNER, "vs_two", NewAttachment("file-two"))
    store.keep(job("file-two", "vs_two"), ingested(axis(0)))
    return store


def test_the_old_vectors_answer_until_all_new_ones_are_there(filled: LocalStores) -> None:
    before = found(filled, axis(0))
    assert [record.id for record in filled.stale_stores(OTHER)] == [STORE, "vs_two"]
    first = filled.chunks_without(STORE, OTHER, 5)
    filled.keep_vectors(OTHER, [ident for ident, _ in first], vectors([ident for ident, _ in first]))
    with pytest.raises(StoreUnavailable):
        filled.swap_model(STORE, OTHER)
    assert found(filled, axis(0)) == before
    assert filled.count_without(STORE, OTHER) == work(filled) == 12 - 5
    assert found(filled, axis(0)) == before
    filled.swap_model(STORE, OTHER)
    with pytest.raises(ModelMismatch):
        found(filled, axis(0))
    assert filled.get_store(OWNER, STORE).model == OTHER
    for ident in range(1, 13):
        hit = filled.search(OWNER, STORE, vectors([ident]).dense, model=OTHER, limit=1)[0]
        assert (hit.chunk_id, hit.score) == (ident, pytest.approx(1, abs=1e-2))
    assert [record.id for record in filled.stale_stores(OTHER)] == ["vs_two"]
    assert found(filled, axis(0), store_id="vs_two") == ["file-two"]
    assert filled.verify(["file-0", "file-1", "file-2", "file-two"]) == []


def test_what_was_done_is_done_after_a_restart(tmp_path: Path, filled: LocalStores) -> None:
    first = filled.chunks_without(STORE, OTHER, 7)
    filled.keep_vectors(OTHER, [ident for ident, _ in first], vectors([ident for ident, _ in first]))
    filled.close()
    again = LocalStores(tmp_path / "data", StorageSettings(lock_wait_s=0), threads=1, clock=lambda: 1_000.0)
    assert work(again) == 12 - 7
    again.swap_model(STORE, OTHER)
    assert len(again.search(OWNER, STORE, vectors([1]).dense, model=OTHER, limit=50)) == 12
    again.close()


def test_files_that_were_being_ingested_begin_anew_and_files_that_went_are_gone(filled: LocalStores) -> None:
    filled.create_file(file_record("file-9"))
    filled.attach(OWNER, STORE, NewAttachment("file-9"))
    filled.keep(job("file-9"), part(ingested(units(np.random.default_rng(9), 5)), 0, 3))
    work(filled)
    filled.detach(OWNER, STORE, "file-0")
    filled.swap_model(STORE, OTHER)
    begun = filled.begin(job("file-9"))
    assert (begun.kept, begun.plan) == (0, "")
    whole = ingested(units(np.random.default_rng(9), 5, OTHER.dimension))
    assert filled.keep(begun, whole)
    assert filled.get_attachment(OWNER, STORE, "file-9").status is FileStatus.COMPLETED
    hits = filled.search(OWNER, STORE, vectors([1]).dense, model=OTHER, limit=50)
    assert {hit.file_id for hit in hits} == {"file-1", "file-2", "file-9"}
    assert filled.verify(["file-0", "file-1", "file-2", "file-9", "file-two"]) == []


def test_vectors_of_a_third_model_do_not_mix_in(filled: LocalStores) -> None:
    third = replace(OTHER, id="third")
    ids = [ident for ident, _ in filled.chunks_without(STORE, third, 50)]
    filled.keep_vectors(third, ids, vectors([100 + ident for ident in ids]))
    assert work(filled) == 12
    filled.swap_model(STORE, OTHER)
    hit = filled.search(OWNER, STORE, vectors([3]).dense, model=OTHER, limit=1)[0]
    assert hit.chunk_id == 3
