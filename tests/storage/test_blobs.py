"""Uploaded bytes: whole or absent."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rag.errors import NotFound, TooLarge
from storage.blobs import ORPHAN_AGE_S, DirectoryBlobs


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def stream(*parts: bytes, error: Exception | None = None) -> AsyncIterator[bytes]:
    for part in parts:
        yield part
    if error is not None:
        raise error


async def test_bytes_come_back_with_their_length_and_hash(tmp_path: Path) -> None:
    blobs = DirectoryBlobs(tmp_path / "blobs")
    size, sha256 = await blobs.write("file-1", stream(b"night ", b"", b"ferry"), limit=11)
    assert (size, sha256) == (11, hashlib.sha256(b"night ferry").hexdigest())
    assert blobs.path("file-1").read_bytes() == b"night ferry"
    assert names(tmp_path / "blobs") == ["file-1"]


async def test_the_limit_acts_while_the_bytes_arrive(tmp_path: Path) -> None:
    blobs = DirectoryBlobs(tmp_path)
    taken = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal taken
        while True:
            taken += 1
            yield b"x" * 100

    with pytest.raises(TooLarge, match="1000 bytes"):
        await blobs.write("file-1", endless(), limit=1000)
    assert taken == 11
    assert names(tmp_path) == []


async def test_an_upload_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    blobs = DirectoryBlobs(tmp_path)
    with pytest.raises(ConnectionError):
        await blobs.write("file-1", stream(b"half", error=ConnectionError()), limit=100)
    assert names(tmp_path) == []
    with pytest.raises(NotFound, match="No such File object: file-1"):
        blobs.path("file-1")


async def test_deleting_twice_is_fine(tmp_path: Path) -> None:
    blobs = DirectoryBlobs(tmp_path)
    await blobs.write("file-1", stream(b"x"), limit=1)
    await blobs.delete("file-1")
    await blobs.delete("file-1")
    with pytest.raises(NotFound):
        blobs.path("file-1")


async def test_only_uploads_are_listed(tmp_path: Path) -> None:
    blobs = DirectoryBlobs(tmp_path)
    await blobs.write("file-1", stream(b"x"), limit=1)
    (tmp_path / "file-2.abc.part").write_bytes(b"half")
    (tmp_path / "README").write_text("Backed up nightly.")
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "file-folder").mkdir()
    (tmp_path / "file-link").symlink_to(tmp_path / "README")
    assert await blobs.ids() == ["file-1"]
    assert await blobs.ids(min_age_s=60) == []


async def test_uploads_that_go_while_they_are_listed_are_not_there(tmp_path: Path) -> None:
    blobs = DirectoryBlobs(tmp_path)
    for number in range(300):
        (tmp_path / f"file-{number}").touch()

    def remove() -> None:
        for number in range(1, 300):
            (tmp_path / f"file-{number}").unlink()

    removing = asyncio.create_task(asyncio.to_thread(remove))
    while not removing.done():
        assert "file-0" in await blobs.ids()
    assert await blobs.ids() == ["file-0"]


async def test_a_path_never_leaves_the_folder(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    blobs = DirectoryBlobs(tmp_path / "blobs")
    for name in ("../secret", str(tmp_path / "secret"), "..", ""):
        with pytest.raises(NotFound):
            blobs.path(name)


async def test_a_start_removes_what_a_crash_left_and_nothing_that_is_being_written(tmp_path: Path) -> None:
    blobs = DirectoryBlobs(tmp_path)
    old = tmp_path / "file-9.abc.part"
    old.write_bytes(b"half")
    os.utime(old, (time.time() - 2 * ORPHAN_AGE_S,) * 2)

    async def while_another_process_starts() -> AsyncIterator[bytes]:
        yield b"first"
        DirectoryBlobs(tmp_path)
        yield b"second"

    await blobs.write("file-1", while_another_process_starts(), limit=100)
    assert names(tmp_path) == ["file-1"]
    assert blobs.path("file-1").read_bytes() == b"firstsecond"
