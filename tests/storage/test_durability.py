"""Whatever was acknowledged survives SIGKILL, once; whatever was not is whole or absent."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from rag.types import FileStatus, PageRequest
from storage.local import LocalStores
from tests.storage.made import MODEL, OWNER, STORE, axis, ingested, units

ROOT = Path(__file__).parents[2]


def run_until_killed(path: Path, point: str, *, after_s: float | None = None) -> list[list[str]]:
    """The process's lines, as words. It kills itself, or is killed `after_s` seconds after it is ready."""
    command = [sys.executable, "-m", "tests.storage.killed", str(path), point]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        limit = threading.Timer(120, process.terminate)  # one that hangs fails here, and holds nobody up
        limit.start()
        lines = []
        for line in process.stdout:
            lines.append(line.split())
            if lines[-1] == ["ready"] and after_s is not None:
                time.sleep(after_s)
                process.kill()
        process.wait()
        limit.cancel()
    assert process.returncode == -signal.SIGKILL
    assert ["ready"] in lines
    return lines


def check(path: Path, lines: list[list[str]], attached: set[str]) -> tuple[set[str], set[str]]:
    """Compare what is there with what was acknowledged; `attached` is what was there before the process began.

    Gives the files that were completed and those that were pending, and ingests the latter.
    """
    unsure: set[str] = set()
    for word, *rest in lines:
        if word == "begin":
            unsure = {rest[1]}
        elif word == "done":
            unsure = set()
            action, file_id = rest
            attached = attached | {file_id} if action != "remove" else attached - {file_id}
    stores = LocalStores(path, threads=1)
    items = stores.list_attachments(OWNER, STORE, PageRequest(limit=100)).items
    completed = {item.file_id for item in items if item.status is FileStatus.COMPLETED}
    assert completed - unsure == attached - unsure
    pending = stores.pending_jobs()
    hits = stores.search(OWNER, STORE, axis(0), model=MODEL, limit=1000)
    assert sorted(hit.file_id for hit in hits) == sorted(3 * list(completed))
    assert len({hit.chunk_id for hit in hits}) == len(hits) == stores.stats()["chunks"]
    assert stores.stats()["indexed_live"] == len(hits)
    for unfinished in pending:
        assert stores.keep(unfinished, ingested(units(np.random.default_rng(0), 3)))
    assert len(stores.search(OWNER, STORE, axis(0), model=MODEL, limit=1000)) == 3 * (len(completed) + len(pending))
    stores.close()
    return completed, {unfinished.file_id for unfinished in pending}


FIRST = {f"file-{number}" for number in range(5)}
SEVENTH = {"file-7"}


@pytest.mark.parametrize(
    ("point", "completed", "pending"),
    [
        ("before-commit:ingest", FIRST, SEVENTH),
        ("before-commit:remove", FIRST, SEVENTH),
        ("between-commit-and-ledger:ingest", FIRST | SEVENTH, set()),
        ("between-commit-and-ledger:remove", FIRST - {"file-1"}, SEVENTH),
        ("before-publishing:ingest", FIRST | SEVENTH, set()),
        ("before-publishing:remove", FIRST - {"file-1"}, SEVENTH),
        ("checkpoint", {f"file-{number}" for number in range(10)}, set()),
    ],
)
def test_a_kill_at_each_point_of_the_crash_table(
    tmp_path: Path, point: str, completed: set[str], pending: set[str]
) -> None:
    assert check(tmp_path, run_until_killed(tmp_path, point), set()) == (completed, pending)


def test_kills_at_random_moments_one_after_the_other(tmp_path: Path) -> None:
    choose = random.Random(11)
    attached: set[str] = set()
    for seed in range(6):
        lines = run_until_killed(tmp_path, str(seed), after_s=choose.uniform(0.0, 0.4))
        completed, pending = check(tmp_path, lines, attached)
        attached = completed | pending
