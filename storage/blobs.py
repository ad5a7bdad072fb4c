"""Uploaded bytes as files in one folder, under our own ids."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from rag import ids
from rag.errors import NotFound, TooLarge

TEMPORARY = ".part"
ORPHAN_AGE_S = 3600
"""A temporary file that nobody has written to for so long is left over; younger ones may belong to another process."""

logger = logging.getLogger(__name__)


class DirectoryBlobs:
    """`rag.protocols.Blobs` over a folder that several processes may share. A crash leaves at most a temporary file,
    which a later start removes."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(parents=True, exist_ok=True)
        self._remove_orphans()

    async def write(self, file_id: str, stream: AsyncIterator[bytes], *, limit: int) -> tuple[int, str]:
        temporary = self._root / f"{file_id}.{uuid4().hex}{TEMPORARY}"
        try:
            with temporary.open("xb") as file:
                size, digest = await _copy(stream, file, limit)
                await asyncio.to_thread(_flush, file)
            await asyncio.to_thread(self._publish, temporary, file_id)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return size, digest

    def path(self, file_id: str) -> Path:
        path = self._root / file_id
        if path.parent != self._root or not path.is_file():
            raise NotFound(f"No such File object: {file_id}", "id")
        return path

    async def delete(self, file_id: str) -> None:
        await asyncio.to_thread((self._root / file_id).unlink, missing_ok=True)

    async def ids(self, *, min_age_s: float = 0.0) -> list[str]:
        return await asyncio.to_thread(self._ids, time.time() - min_age_s)

    def _ids(self, before: float) -> list[str]:
        found = []
        with os.scandir(self._root) as entries:
            for entry in entries:
                if not entry.name.startswith(ids.FILE) or entry.name.endswith(TEMPORARY):
                    continue  # not an upload, and so not ours to judge
                with suppress(FileNotFoundError):  # deleted just now
                    if entry.is_file(follow_symlinks=False) and entry.stat().st_mtime <= before:
                        found.append(entry.name)
        return found

    def _publish(self, temporary: Path, file_id: str) -> None:
        temporary.replace(self._root / file_id)
        folder = os.open(self._root, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _remove_orphans(self) -> None:
        for path in self._root.glob(f"*{TEMPORARY}"):
            try:
                if time.time() - path.stat().st_mtime > ORPHAN_AGE_S:
                    path.unlink()
                    logger.info("Removed %s, left over from an upload that was cut off.", path.name)
            except FileNotFoundError:
                continue  # finished, or removed by another process, just now


async def _copy(stream: AsyncIterator[bytes], file: BinaryIO, limit: int) -> tuple[int, str]:
    digest = hashlib.sha256()
    size = 0
    async for part in stream:
        size += len(part)
        if size > limit:
            raise TooLarge(f"The file is larger than the limit of {limit} bytes.", "file")
        digest.update(part)
        await asyncio.to_thread(file.write, part)
    return size, digest.hexdigest()


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
