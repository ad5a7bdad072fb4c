"""What would exceed an owner's quota is refused before it is kept, and another owner's is untouched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rag.errors import InvalidRequest, UnsupportedFile
from rag.settings import QuotaSettings
from rag.types import NewAttachment, PageRequest
from storage.local import LocalStores
from tests.storage.contract import part
from tests.storage.made import OWNER, STORE, axis, file_record, fill, ingested, job, store_record, units

Make = Callable[..., LocalStores]
CHUNK = len("text 0 é".encode())


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Make]:
    made: list[LocalStores] = []

    def make(**limits: int) -> LocalStores:
        made.append(LocalStores(tmp_path / str(len(made)), threads=1, quotas=QuotaSettings(**limits)))
        return made[-1]

    yield make
    for stores in made:
        stores.close()


def test_one_upload_too_many_is_refused_until_another_goes(limited: Make) -> None:
    stores = limited(max_files=2)
    for file_id in ("file-1", "file-2"):
        stores.create_file(file_record(file_id))
    stores.create_file(file_record("file-3", owner="ben"))
    with pytest.raises(InvalidRequest, match="2 of 2 uploaded files") as refused:
        stores.create_file(file_record("file-4"))
    assert refused.value.code == "quota_exceeded"
    stores.delete_file(OWNER, "file-1")
    stores.create_file(file_record("file-4"))
    assert len(stores.list_files(OWNER, PageRequest()).items) == 2


def test_bytes_of_uploads_are_counted_together(limited: Make) -> None:
    stores = limited(max_file_bytes=25)
    stores.create_file(file_record("file-1"))
    stores.create_file(file_record("file-2"))
    with pytest.raises(InvalidRequest, match="10 bytes, and of 25 bytes for uploads 5 are left"):
        stores.create_file(file_record("file-3"))
    stores.create_file(replace(file_record("file-3"), bytes=5))


def test_one_store_too_many_is_refused_also_in_parallel(limited: Make) -> None:
    stores = limited(max_stores=3)

    def create(number: int) -> bool:
        try:
            stores.create_store(store_record(f"vs_{number}"))
        except InvalidRequest:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(create, range(8))) == 3
    stores.create_store(store_record("vs_ben", owner="ben"))


def test_the_room_for_text_is_what_other_files_leave(limited: Make) -> None:
    stores = limited(max_store_bytes=10 * CHUNK)
    stores.create_store(store_record())
    stores.create_store(store_record("vs_ben", owner="ben"))
    stores.create_file(file_record("file-ben", owner="ben"))
    stores.attach("ben", "vs_ben", NewAttachment("file-ben"))
    assert stores.keep(job("file-ben", "vs_ben"), ingested(units(np.random.default_rng(0), 9)))
    fill(stores, "file-1", units(np.random.default_rng(1), 4), text="text")
    stores.create_file(file_record("file-2"))
    stores.attach(OWNER, STORE, NewAttachment("file-2"))
    assert stores.begin(job("file-2")).room == 6 * CHUNK
    whole = ingested(units(np.random.default_rng(2), 6))
    assert stores.keep(job("file-2"), part(whole, 0, 3))
    assert stores.begin(job("file-2")).room == 6 * CHUNK  # its own chunks do not count against it
    assert stores.keep(job("file-2"), part(whole, 3, 6))
    assert stores.get_store(OWNER, STORE).usage_bytes == 10 * CHUNK


def test_room_that_others_have_taken_meanwhile_fails_the_file_and_keeps_nothing_of_the_part(limited: Make) -> None:
    stores = limited(max_store_bytes=5 * CHUNK)
    stores.create_store(store_record())
    for file_id in ("file-1", "file-2"):
        stores.create_file(file_record(file_id))
        stores.attach(OWNER, STORE, NewAttachment(file_id))
    whole = ingested(units(np.random.default_rng(2), 4))
    assert stores.keep(job("file-1"), part(whole, 0, 2))
    assert stores.keep(job("file-2"), part(whole, 0, 2))
    with pytest.raises(UnsupportedFile, match="used up"):
        stores.keep(job("file-1"), part(whole, 2, 4))
    assert stores.stats()["chunks"] == 4


def test_without_limits_there_is_room_for_anything(limited: Make) -> None:
    stores = limited()
    stores.create_store(store_record())
    stores.create_file(file_record("file-1"))
    stores.attach(OWNER, STORE, NewAttachment("file-1"))
    assert stores.begin(job("file-1")).room is None
    assert stores.keep(job("file-1"), ingested(axis(0)))
