"""The lock of a data directory: one owner at a time, across processes."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from pathlib import Path

from rag.errors import StoreLocked

POLL_S = 0.05


class DirectoryLock:
    """An advisory lock on a file, which names its holder. The kernel frees it when the holder dies, however it dies."""

    def __init__(self, path: Path, *, wait_s: float = 0.0) -> None:
        """Take the lock, waiting up to `wait_s` seconds for a leaving owner.

        Raises:
            StoreLocked: somebody else still holds it; the message names the process and the host.
        """
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._acquire(wait_s)
        except BaseException:
            os.close(self._file)
            raise

    def _acquire(self, wait_s: float) -> None:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise StoreLocked(self._refusal(wait_s)) from None
                time.sleep(min(POLL_S, left))
            else:
                break
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)

    def _refusal(self, wait_s: float) -> str:
        holder = os.pread(self._file, 4096, 0).decode(errors="replace")
        try:
            named = json.loads(holder)
            who = f"process {named['pid']} on {named['host']}"
        except (ValueError, KeyError, TypeError):
            who = "another process"
        return (
            f"The data directory {self._path.parent} is in use by {who}; waited {wait_s:g} s. "
            "Stop that process, or choose another data directory."
        )

    def release(self) -> None:
        """Let the next owner in."""
        os.close(self._file)
