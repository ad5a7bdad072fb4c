"""What has expired or belongs to nobody goes, what is wanted stays, and forgotten jobs are taken up."""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rag.types import FileStatus, IngestedPart, IngestJob, NewAttachment, PageRequest
from storage import concurrency
from storage.blobs import DirectoryBlobs
from storage.concurrency import ORPHAN_AGE_S, AsyncStores
from storage.layout import ShardLayout
from storage.local import LocalStores
from storage.settings import StorageSettings
from tests.storage.made import OWNER, STORE, axis, file_record, ingested, store_record


class OneChunk:
    """Any file is one chunk."""

    async def ingest(self, job: IngestJob) -> AsyncGenerator[IngestedPart, None]:
        yield ingested(axis(0))


async def data(text: bytes) -> AsyncIterator[bytes]:
    yield text


@pytest.fixture
async def world(tmp_path: Path, clock: Any) -> AsyncIterator[tuple[AsyncStores, LocalStores, DirectoryBlobs]]:
    blobs = DirectoryBlobs(tmp_path / "blobs")
    local = LocalStores(tmp_path, threads=1, clock=clock)
    stores = AsyncStores(local, OneChunk(), blobs)
    await stores.create_store(store_record())
    yield stores, local, blobs
    await stores.close()


async def upload(stores: AsyncStores, blobs: DirectoryBlobs, file_id: str, expires_at: int | None = None) -> None:
    await blobs.write(file_id, data(b"text"), limit=100)
    await stores.create_file(replace(file_record(file_id), expires_at=expires_at))


async def test_expired_uploads_lose_their_record_and_their_bytes(
    world: tuple[AsyncStores, LocalStores, DirectoryBlobs], clock: Any
) -> None:
    stores, _, blobs = world
    await upload(stores, blobs, "file-1", 2_000)
    await upload(stores, blobs, "file-2")
    done = await stores.attach(OWNER, STORE, NewAttachment("file-1"), wait_s=60)
    assert done.status is FileStatus.COMPLETED
    await stores.sweep()
    assert sorted(await blobs.ids()) == ["file-1", "file-2"]
    clock.now = 2_000
    await stores.sweep()
    assert await blobs.ids() == ["file-2"]
    assert [item.id for item in (await stores.list_files(OWNER, PageRequest())).items] == ["file-2"]
    assert (await stores.get_text(OWNER, STORE, "file-1")).chunks


async def test_bytes_without_a_record_go_when_no_upload_can_be_waiting_for_it(
    world: tuple[AsyncStores, LocalStores, DirectoryBlobs],
) -> None:
    stores, _, blobs = world
    await upload(stores, blobs, "file-1")
    for file_id in ("file-old", "file-young"):
        await blobs.write(file_id, data(b"text"), limit=100)
    past = time.time() - ORPHAN_AGE_S - 1
    for file_id in ("file-1", "file-old"):
        os.utime(blobs.path(file_id), (past, past))
    await stores.sweep()
    assert sorted(await blobs.ids()) == ["file-1", "file-young"]


async def test_bytes_whose_record_was_lost_with_a_damaged_log_stay(tmp_path: Path) -> None:
    layout = ShardLayout(tmp_path)
    blobs = DirectoryBlobs(layout.blobs)
    LocalStores(tmp_path, threads=1).close()
    layout.log.write_bytes(b"torn")
    layout.ledger.write_text("99")  # many commits that were in the log
    await blobs.write("file-lost", data(b"text"), limit=100)
    past = time.time() - ORPHAN_AGE_S - 1
    os.utime(blobs.path("file-lost"), (past, past))
    for settings in (StorageSettings(open_from_checkpoint=True), StorageSettings()):
        stores = AsyncStores(LocalStores(tmp_path, settings, threads=1), OneChunk(), blobs)
        await stores.sweep()
        await stores.close()
    assert await blobs.ids() == ["file-lost"]
    for log in layout.log_copies():
        log.unlink()  # nobody hopes for the records any longer
    stores = AsyncStores(LocalStores(tmp_path, threads=1), OneChunk(), blobs)
    await stores.sweep()
    await stores.close()
    assert await blobs.ids() == []


async def test_a_full_disk_does_not_end_the_sweeping(
    world: tuple[AsyncStores, LocalStores, DirectoryBlobs],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    stores, local, blobs = world
    monkeypatch.setattr(concurrency, "HOUSEKEEPING_S", 0.01)
    await stores.start()
    await upload(stores, blobs, "file-1")
    log = ShardLayout(tmp_path).log.stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (log, limits[1]))  # no commit can be written
    try:
        async with asyncio.timeout(60):
            while "sweeping did not succeed" not in caplog.text:
                await asyncio.sleep(0.01)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    local.attach(OWNER, STORE, NewAttachment("file-1"))  # behind the back of the jobs
    async with asyncio.timeout(60):
        while (await stores.get_attachment(OWNER, STORE, "file-1")).status is FileStatus.IN_PROGRESS:
            await asyncio.sleep(0.01)


async def test_a_job_that_nobody_works_on_is_taken_up(world: tuple[AsyncStores, LocalStores, DirectoryBlobs]) -> None:
    stores, local, blobs = world
    await upload(stores, blobs, "file-1")
    local.attach(OWNER, STORE, NewAttachment("file-1"))  # behind the back of the jobs
    await stores.sweep()
    async with asyncio.timeout(60):
        while (await stores.get_attachment(OWNER, STORE, "file-1")).status is FileStatus.IN_PROGRESS:
            await asyncio.sleep(0.01)
    assert local.pending_jobs() == []
