"""Damage is found before anything is opened for writing, and never changes a file."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pytest

from rag.errors import StoreDamaged
from rag.types import FileBatch, FileCounts, FileStatus, NewAttachment
from storage.database import M001, Database
from storage.layout import ShardLayout
from storage.local import LocalStores
from storage.settings import StorageSettings
from tests.storage.contract import found, part
from tests.storage.made import OWNER, STORE, axis, ingested, job, units

ROOT = Path(__file__).parents[2]

# Leaves a data directory with a log: two files are in the checkpoint, one of them not ingested yet; two more, and the
# chunks of that one, are only in the log.
WRITE_AND_DIE = """
import os, signal, sys
from pathlib import Path
from rag.types import NewAttachment
from storage.local import LocalStores
from tests.storage.made import *
stores = LocalStores(Path(sys.argv[1]), threads=1)
stores.create_store(store_record())
fill(stores, "file-0", axis(0))
stores.create_file(file_record("file-1"))
stores.attach(OWNER, STORE, NewAttachment("file-1"))
stores.checkpoint()
stores.keep(job("file-1"), ingested(axis(1)))
fill(stores, "file-2", axis(2))
fill(stores, "file-3", axis(3))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a store whose process was killed, by name."""
    path = tmp_path_factory.mktemp("killed")
    ended = subprocess.run([sys.executable, "-c", WRITE_AND_DIE, str(path)], cwd=ROOT, check=False)
    assert ended.returncode == -signal.SIGKILL
    return {file.name: file.read_bytes() for file in path.iterdir()}


@pytest.fixture
def layout(tmp_path: Path, killed: dict[str, bytes]) -> ShardLayout:
    """A copy of them."""
    for name, content in killed.items():
        (tmp_path / name).write_bytes(content)
    return ShardLayout(tmp_path)


def contents(layout: ShardLayout) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in layout.root.iterdir() if path != layout.lock}


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0xFF
    path.write_bytes(bytes(content))


def test_a_killed_process_loses_nothing(layout: ShardLayout) -> None:
    stores = LocalStores(layout.root)
    assert sorted(found(stores, axis(0))) == ["file-0", "file-1", "file-2", "file-3"]
    stores.close()


def test_what_follows_the_last_whole_entry_of_the_log_is_a_commit_that_never_was(layout: ShardLayout) -> None:
    with layout.log.open("ab") as log:
        log.write(b"\x40\x00\x00")
    stores = LocalStores(layout.root)
    assert len(found(stores, axis(0))) == 4
    stores.close()


def cut_log(layout: ShardLayout) -> None:
    layout.log.write_bytes(layout.log.read_bytes()[: layout.log.stat().st_size // 2])


def log_of_nothing(layout: ShardLayout) -> None:
    layout.log.write_bytes(b"")


def log_of_zeros(layout: ShardLayout) -> None:
    layout.log.write_bytes(bytes(layout.log.stat().st_size))


DAMAGES = {
    "log cut": cut_log,
    "log empty": log_of_nothing,
    "log zeroed": log_of_zeros,
    "log missing": lambda layout: layout.log.unlink(),
    "log begins wrong": lambda layout: flip(layout.log, 0),
    **{
        f"log flipped at {share} %": lambda layout, share=share: flip(
            layout.log, layout.log.stat().st_size * share // 100
        )
        for share in (2, 20, 50, 70, 95)
    },
    "database empty": lambda layout: layout.database.write_bytes(b""),
    "database cut": lambda layout: layout.database.write_bytes(layout.database.read_bytes()[:20_000]),
    "database flipped in front": lambda layout: flip(layout.database, 9),
    "database flipped in the headers": lambda layout: [flip(layout.database, at) for at in (4_200, 8_300)],
    "database missing": lambda layout: layout.database.unlink(),
    "database of something else": lambda layout: layout.database.write_bytes(b"SQLite format 3\x00" * 1000),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_stops_the_start_and_leaves_every_file_as_it_was(layout: ShardLayout, damage: str) -> None:
    DAMAGES[damage](layout)
    before = contents(layout)
    with pytest.raises(StoreDamaged, match=r"store\.duckdb"):
        LocalStores(layout.root)
    assert contents(layout) == before
    with pytest.raises(StoreDamaged):  # the lock is free again, and it is no better the second time
        LocalStores(layout.root, StorageSettings(lock_wait_s=0))


@pytest.mark.parametrize("damage", [name for name in DAMAGES if name.startswith("log")])
def test_the_last_checkpoint_opens_where_that_is_allowed(
    layout: ShardLayout, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    DAMAGES[damage](layout)
    log = layout.log.read_bytes() if layout.log.exists() else None
    stores = LocalStores(layout.root, StorageSettings(open_from_checkpoint=True))
    assert "last checkpoint" in caplog.text
    assert found(stores, axis(0)) == ["file-0"]
    assert stores.pending_jobs() == [job("file-1")]
    kept = list(layout.root.glob("*.damaged-*"))
    assert [path.read_bytes() for path in kept] == ([] if log is None else [log])
    stores.close()
    LocalStores(layout.root).close()


@pytest.mark.parametrize("damage", [name for name in DAMAGES if name.startswith("database")])
def test_a_damaged_database_does_not_open_from_a_checkpoint_either(layout: ShardLayout, damage: str) -> None:
    DAMAGES[damage](layout)
    with pytest.raises(StoreDamaged):
        LocalStores(layout.root, StorageSettings(open_from_checkpoint=True))
    assert layout.log.exists()


def test_files_that_lost_their_chunks_are_ingested_again(layout: ShardLayout) -> None:
    LocalStores(layout.root).close()
    with duckdb.connect(str(layout.database)) as connection:
        connection.execute(
            "delete from chunks where attachment = (select key from attachments where file_id = 'file-2')"
        )
        connection.execute("update ledger set commits = 1")  # as if the log that held them were gone
    stores = LocalStores(layout.root, StorageSettings(open_from_checkpoint=True))
    assert [pending.file_id for pending in stores.pending_jobs()] == ["file-2"]
    assert stores.get_attachment(OWNER, STORE, "file-2").status is FileStatus.IN_PROGRESS
    assert stores.get_store(OWNER, STORE).file_counts == FileCounts(completed=3, in_progress=1)
    stores.close()


def test_a_database_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    layout = ShardLayout(tmp_path)
    Database(layout, threads=1).close()
    with duckdb.connect(str(layout.database)) as connection:
        connection.execute("insert into migrations values (2)")
    with pytest.raises(StoreDamaged, match="newer version"):
        Database(layout, threads=1)


# What the first version of the schema held: a file that is ingested, and one that is being so.
FIRST_VERSION = """
insert into files select 'file-' || i, 'anna', 'a.txt', 10, 'assistants', 1000, '0', null from range(2) t(i);
insert into vector_stores values ('vs_sea', 'anna', 'sea', null, null, 1000, 1000, null,
    'hash', 'r1', 16, 128, false, 'cpu', 'float32', 'torch');
insert into attachments values
    (nextval('attachment_keys'), 'vs_sea', 'file-0', 'a.txt', 'completed', 1000, 800, 400, '{"n": 1}', 1, 3, 4, null,
        null, 0),
    (nextval('attachment_keys'), 'vs_sea', 'file-1', 'a.txt', 'in_progress', 1000, 800, 400, '{}', 0, 0, 0, null,
        null, 1);
insert into attributes values (1, 'n', null, 1.0, null);
insert into chunks values (nextval('chunk_ids'), 1, 0, 'text', 3, 0, 4, null, null, null, ?, null);
"""


@pytest.mark.parametrize("folded", [True, False])
def test_a_database_of_the_first_version_is_taken_on_with_all_that_it_holds(tmp_path: Path, folded: bool) -> None:
    layout = ShardLayout(tmp_path)
    with duckdb.connect(str(layout.database)) as connection:
        if not folded:
            connection.execute("pragma disable_checkpoint_on_shutdown")
        connection.execute(f"create table migrations(version integer); insert into migrations values (1); {M001}")
        *rows, chunk = FIRST_VERSION.split(";")[:-1]
        for statement in rows:
            connection.execute(statement)
        connection.execute(chunk, [axis(0).astype(np.float16).tobytes()])
    assert layout.log.exists() is not folded

    stores = LocalStores(tmp_path, threads=1)
    assert found(stores, axis(0)) == ["file-0"]
    assert stores.pending_jobs() == [replace(job("file-1", attempt=2), filename="a.txt")]
    assert stores.verify(["file-0", "file-1"]) == []
    stores.create_batch(OWNER, FileBatch("vsfb_1", STORE, 1000), [NewAttachment("file-0"), NewAttachment("file-1")])
    whole = ingested(units(np.random.default_rng(0), 4))
    assert stores.keep(job("file-1"), part(whole, 0, 2))
    stores.close()

    stores = LocalStores(tmp_path, threads=1)
    assert stores.keep(job("file-1"), part(whole, 2, 4))
    assert sorted(found(stores, axis(0))) == ["file-0", *["file-1"] * 4]
    assert stores.get_batch(OWNER, STORE, "vsfb_1").file_counts == FileCounts(completed=2)
    assert stores.verify(["file-0", "file-1"]) == []
    stores.close()


def test_a_ledger_that_cannot_be_read_compares_nothing(layout: ShardLayout) -> None:
    layout.ledger.write_bytes(b"\x00\x00")
    stores = LocalStores(layout.root)
    assert len(found(stores, axis(0))) == 4
    stores.close()
