"""Whatever is made to exist on one side only is reported; what is sound is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rag.types import FileBatch, NewAttachment
from storage.database import Database
from storage.generations import StoreIndex
from storage.local import LocalStores
from tests.storage.contract import part
from tests.storage.made import MODEL, OWNER, STORE, axis, file_record, fill, ingested, job, store_record, units

FILES = [f"file-{number}" for number in range(6)]


@pytest.fixture
def sound(store: LocalStores) -> LocalStores:
    """Of everything something: done, searched, waiting, half done, failed, in a batch, in an expired store."""
    for number in range(3):
        fill(store, FILES[number], units(np.random.default_rng(number), 4), {"n": number})
    for file_id in FILES[3:]:
        store.create_file(file_record(file_id))
    store.attach(OWNER, STORE, NewAttachment(FILES[3]))
    files = [NewAttachment(FILES[4], {"n": 4}), NewAttachment("file-none")]
    store.create_batch(OWNER, FileBatch("vsfb_1", STORE, 1_000), files)
    store.keep(job(FILES[4]), part(ingested(units(np.random.default_rng(4), 5)), 0, 3))
    store.create_store(replace(store_record("vs_old"), expires_after_days=1, last_active_at=-200_000))
    store.detach(OWNER, STORE, FILES[2])
    store.search(OWNER, STORE, axis(0), model=MODEL, limit=3)
    return store


def test_what_is_sound_is_not_reported(sound: LocalStores) -> None:
    assert sound.verify(FILES) == []
    sound.delete_store(OWNER, STORE)
    assert sound.verify(FILES) == []


CHANGES = {
    "delete from vector_stores where id = 'vs_sea'": "file-0 is attached to vector store vs_sea, which is not there",
    "delete from attachments where file_id = 'file-1'": "4 chunks belong to attachment 2, which is not there",
    "insert into attributes values (99, 'k', 'v', null, null)": "1 attributes belong to attachment 99",
    "update batches set store_id = 'vs_none'": "batch vsfb_1 belongs to vector store vs_none",
    "delete from batches": "batch vsfb_1 has attachment",
    "delete from chunks where ordinal = 1": "says 4 chunks of 44 bytes, and has 3 of 33",
    "update chunks set text = text || 'é'": "says 4 chunks of 44 bytes, and has 4 of 52",
    "update attachments set chunk_count = 0, usage_bytes = 0; delete from chunks": "is completed without a chunk",
    "update chunks set ordinal = 2 where ordinal = 1": "attachment 1 has chunks twice, or lacks some",
    "update chunks set vector = vector[1:30]": "have not 16 dimensions",
}


@pytest.mark.parametrize("sql", CHANGES)
def test_a_row_that_contradicts_another_is_reported(sound: LocalStores, sql: str) -> None:
    def change(database: Database) -> None:
        database.begin().execute(sql)
        database.commit()

    sound._writer.between(lambda: change(sound._database))
    if "vector_stores" in sql or "vector[" in sql:
        sound._indexes.clear()
    if "vector[" in sql:
        with pytest.raises(ValueError, match="reshape"):  # the index cannot be loaded at all
            sound.verify(FILES)
        return
    assert any(CHANGES[sql] in sentence for sentence in sound.verify(FILES))


def test_chunks_that_the_index_lacks_or_has_too_many_are_reported(
    sound: LocalStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StoreIndex, "apply", lambda *_: None)
    sound.keep(job(FILES[3]), ingested(units(np.random.default_rng(3), 2)))
    assert f"vector store {STORE}: 2 chunks are kept but not found" in sound.verify(FILES)
    sound.detach(OWNER, STORE, FILES[0])
    assert f"vector store {STORE}: 4 chunks are found but not kept" in sound.verify(FILES)


@pytest.mark.parametrize(
    ("lying", "sentence"),
    [
        (lambda: FILES[1:], "file file-0 has lost its bytes"),
        (lambda: [*FILES, "file-9"], "bytes of file-9 belong to no upload"),
    ],
)
def test_bytes_without_a_record_and_records_without_bytes_are_reported(
    sound: LocalStores, lying: Callable[[], list[str]], sentence: str
) -> None:
    assert sound.verify(lying()) == [sentence]


def test_it_looks_at_a_directory_as_it_lies(tmp_path: Path, sound: LocalStores) -> None:
    sound.close()
    stores = LocalStores(tmp_path / "data", threads=1, clock=lambda: 1_000.0)
    assert stores.verify(FILES) == []
    stores.close()
