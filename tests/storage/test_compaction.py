"""Compaction gives back space and changes nothing else, whenever it is killed."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import numpy as np
import pytest

from rag.errors import StoreDamaged, StoreLocked
from rag.types import NewAttachment
from storage import compaction
from storage.compaction import compact
from storage.database import Database
from storage.layout import ShardLayout
from storage.local import LocalStores
from storage.settings import StorageSettings
from tests.storage.contract import found
from tests.storage.made import OWNER, STORE, axis, file_record, fill, ingested, job, store_record, units

TEXT = np.random.default_rng(0).bytes(1_000).hex()
ROOT = Path(__file__).parents[2]


@pytest.fixture
def layout(tmp_path: Path) -> ShardLayout:
    """A directory whose database has had much and holds little."""
    stores = LocalStores(tmp_path, threads=1)
    stores.create_store(store_record())
    for number in range(12):
        fill(
            stores,
            f"file-{number}",
            units(np.random.default_rng(number), 200),
            {"n": number},
            text=f"{number}".join(TEXT),
        )
    stores.checkpoint()
    for number in range(11):
        stores.delete_file(OWNER, f"file-{number}")
    stores.close()
    return ShardLayout(tmp_path)


def contents(layout: ShardLayout) -> dict[str, list[tuple[object, ...]]]:
    with duckdb.connect(str(layout.database), read_only=True) as connection:
        tables = [name for (name,) in connection.execute("select table_name from duckdb_tables()").fetchall()]
        return {name: sorted(connection.execute(f"select * from {name}").fetchall(), key=repr) for name in tables}


def test_space_comes_back_and_everything_is_there(layout: ShardLayout) -> None:
    kept = contents(layout)
    before, after = compact(layout, threads=1)
    assert before > 2 * after
    assert layout.database.stat().st_size == after
    assert contents(layout) == kept
    assert not layout.copy.exists()
    stores = LocalStores(layout.root, StorageSettings(lock_wait_s=0), threads=1)
    assert set(found(stores, axis(0))) == {"file-11"}
    assert stores.verify(["file-11"]) == []
    stores.create_file(file_record("file-new"))  # numbers go on where they were
    stores.attach(OWNER, STORE, NewAttachment("file-new"))
    assert stores.keep(job("file-new"), ingested(axis(0)))
    assert stores.verify(["file-11", "file-new"]) == []
    stores.close()


def test_it_refuses_while_the_service_runs(layout: ShardLayout) -> None:
    stores = LocalStores(layout.root, StorageSettings(lock_wait_s=0), threads=1)
    with pytest.raises(StoreLocked):
        compact(layout, threads=1)
    stores.close()


@pytest.mark.parametrize("place", ["_copy", "_flush"])
def test_killed_at_any_point_it_leaves_the_database_as_it_was(layout: ShardLayout, place: str) -> None:
    kept = contents(layout)
    script = f"""
import os, signal
from pathlib import Path
from storage import compaction
from storage.layout import ShardLayout
done = compaction.{place}
def die(layout):
    done(layout)
    os.kill(os.getpid(), signal.SIGKILL)
compaction.{place} = die
compaction.compact(ShardLayout(Path({str(layout.root)!r})), threads=1)
"""
    killed = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False, timeout=120)
    assert killed.returncode == -9
    assert layout.copy.exists()
    assert contents(layout) == kept
    compact(layout, threads=1)
    assert contents(layout) == kept


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file may grow beyond so many bytes, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("share", [1, 10, 30, 60])
def test_without_room_for_the_copy_everything_stays_as_it_was(layout: ShardLayout, share: int) -> None:
    kept = contents(layout)
    done = layout.root / "done"
    shutil.copyfile(layout.database, done)
    compact(ShardLayout(layout.root), threads=1)
    smallest = layout.database.stat().st_size
    done.replace(layout.database)
    with room_for(smallest * share // 100), pytest.raises(StoreDamaged, match="left as it was"):
        compact(layout, threads=1)
    assert contents(layout) == kept
    assert not layout.copy.exists()
    assert not layout.copy_log.exists()


def test_a_log_that_closing_does_not_fold_in_is_not_left_beside_the_copy(
    layout: ShardLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = Database.close

    def without_checkpoint(database: Database) -> None:  # what a failing one comes to
        database.cursor.execute("pragma disable_checkpoint_on_shutdown")
        close(database)

    monkeypatch.setattr(Database, "close", without_checkpoint)
    stores = LocalStores(layout.root, StorageSettings(lock_wait_s=0), threads=1)
    stores.create_file(file_record("file-new"))
    stores.close()
    assert layout.log.stat().st_size
    kept = contents(layout)
    compact(layout, threads=1)
    monkeypatch.undo()
    assert contents(layout) == kept
    stores = LocalStores(layout.root, StorageSettings(lock_wait_s=0), threads=1)
    assert stores.verify(["file-11", "file-new"]) == []
    stores.close()


def test_a_copy_that_is_not_whole_is_not_taken(layout: ShardLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = contents(layout)

    def fails(layout: ShardLayout) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(compaction, "_flush", fails)
    with pytest.raises(OSError, match="no space"):
        compact(layout, threads=1)
    assert contents(layout) == kept
