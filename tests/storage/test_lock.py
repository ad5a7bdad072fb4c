"""The lock of a data directory, between two processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rag.errors import StoreLocked
from storage.lock import DirectoryLock

ROOT = Path(__file__).parents[2]
HOLD = """
import sys
from pathlib import Path
from storage.lock import DirectoryLock
lock = DirectoryLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock until its input is closed."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def test_the_refusal_names_the_process_that_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with holder(path) as process, pytest.raises(StoreLocked, match=f"process {process.pid} on {os.uname().nodename}"):
        DirectoryLock(path, wait_s=0)


def test_it_waits_for_a_leaving_owner(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with holder(path) as process:
        leaving = threading.Timer(0.2, process.kill)
        leaving.start()
        DirectoryLock(path, wait_s=30).release()
        leaving.join()


def test_a_released_lock_can_be_taken_again(tmp_path: Path) -> None:
    for _ in range(2):
        DirectoryLock(tmp_path / "lock").release()


def test_a_holder_that_cannot_be_read_is_another_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = DirectoryLock(path)
    path.write_bytes(b"\xff{")
    with pytest.raises(StoreLocked, match="another process"):
        DirectoryLock(path)
    lock.release()
