"""The DuckDB database of a data directory: opening it safely, cursors, transactions, checkpoints, migrations.

A damaged file is never changed: the database is first opened for reading alone and checked against the ledger, a small
file that holds the number of acknowledged commits. DuckDB replays its log up to the first torn entry and says nothing
about the rest; the ledger does.

| killed                       | at the next opening                                              |
| ---------------------------- | ---------------------------------------------------------------- |
| before a commit              | the log ends with a torn entry, which is ignored                 |
| between commit and ledger    | the database is one commit ahead of the ledger, which is fine    |
| during a checkpoint          | the log is replayed over the old or the new state                |
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb

from rag.errors import StoreDamaged
from storage.layout import ShardLayout

Cursor = duckdb.DuckDBPyConnection

logger = logging.getLogger(__name__)

M001 = """
create table ledger(commits bigint not null);
insert into ledger values (0);

create table files(
    id varchar primary key, owner varchar not null, filename varchar not null, bytes bigint not null,
    purpose varchar not null, created_at bigint not null, sha256 varchar not null, expires_at bigint
);

create table vector_stores(
    id varchar primary key, owner varchar not null, name varchar not null, description varchar, metadata varchar,
    created_at bigint not null, last_active_at bigint not null, expires_after_days integer,
    model_id varchar not null, model_revision varchar not null, dimension integer not null, max_tokens integer not null,
    has_sparse boolean not null, device varchar not null, dtype varchar not null, engine varchar not null
);

-- `key` is never reused, so that a file which is detached and attached again is a new attachment everywhere.
create sequence attachment_keys;
create table attachments(
    key bigint primary key default nextval('attachment_keys'),
    store_id varchar not null, file_id varchar not null, filename varchar not null,
    status varchar not null, created_at bigint not null,
    max_chunk_size_tokens integer not null, chunk_overlap_tokens integer not null,
    attributes varchar not null,
    chunk_count bigint not null default 0, token_count bigint not null default 0, usage_bytes bigint not null default 0,
    error_code varchar, error_message varchar, attempts integer not null default 0,
    unique (store_id, file_id)
);

-- One row per attribute, for filters: exactly one of text, number and flag is there.
create table attributes(attachment bigint not null, key varchar not null, text varchar, number double, flag boolean);

create sequence chunk_ids;
create table chunks(
    id bigint primary key, attachment bigint not null, ordinal integer not null, text varchar not null,
    token_count integer not null, start_char bigint not null, end_char bigint not null,
    page integer, page_last integer, heading varchar,
    vector blob not null, -- half floats
    sparse blob           -- int32 indices, then as many float32 values
);
"""

M002 = """
create table batches(
    id varchar primary key, store_id varchar not null, created_at bigint not null, cancelled boolean not null
);
create table batch_files(batch_id varchar not null, attachment bigint not null);

-- Vectors that another model gave, until all chunks of a store have one.
create table reembedded(chunk bigint not null, model varchar not null, vector blob not null, sparse blob);

alter table attachments add column batch_id varchar; -- the batch that it was attached with
alter table attachments add column plan varchar;     -- how the kept chunks were cut, while others are still missing
"""

MIGRATIONS = (M001, M002)
"""Applied in order, each in a transaction of its own; the position is the schema's version."""

OPTIONS: dict[str, str | bool | int | float | list[str]] = {
    # As a join, a list of ids costs half a millisecond more than as a plain filter on the index.
    "disabled_optimizers": "in_clause",
    "autoload_known_extensions": False,
    "autoinstall_known_extensions": False,
    "enable_external_access": False,
}


class Database:
    """The open database. `cursor` gives each thread its own; the other methods are for the one thread that writes."""

    def __init__(self, layout: ShardLayout, *, threads: int, open_from_checkpoint: bool = False) -> None:
        """Open, or create where the directory holds nothing yet.

        Raises:
            StoreDamaged: a file is missing, damaged, or has lost acknowledged commits; nothing was changed.
        """
        self._layout = layout
        self.recovered = False
        """Whether the log was damaged and the last checkpoint was opened instead."""
        try:
            self._look()
        except StoreDamaged as damage:
            if not open_from_checkpoint or not layout.database.exists():
                raise
            self._set_log_aside(damage)
        self._local = threading.local()
        try:
            self._connection = duckdb.connect(str(layout.database), config={**OPTIONS, "threads": threads})
            self._writer = self._connection.cursor()
            self._migrate()
            (self._commits,) = _one(self._writer, "select commits from ledger")
        except duckdb.Error as error:
            raise StoreDamaged(f"The database {layout.database} cannot be opened: {error}") from error
        self._ledger = os.open(layout.ledger, os.O_RDWR | os.O_CREAT, 0o644)
        self._write_ledger()

    # --- opening ----------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Check without changing anything."""
        database = self._layout.database
        if not database.exists():
            traces = [path for path in (self._layout.log, self._layout.ledger) if path.exists()]
            if traces:
                raise StoreDamaged(
                    f"The database {database} is missing, but {traces[0].name} is there. Restore a backup."
                )
            return
        try:
            with duckdb.connect(str(database), read_only=True) as connection:
                (version,) = _one(connection, "select count(*) from migrations") if _migrated(connection) else (0,)
                commits = _one(connection, "select commits from ledger")[0] if version else 0
        except duckdb.Error as error:
            raise StoreDamaged(f"{self._advice()} DuckDB says: {error}") from error
        if version > len(MIGRATIONS):
            raise StoreDamaged(f"The database {database} was written by a newer version (schema {version}).")
        acknowledged = _read_ledger(self._layout.ledger)
        if commits < acknowledged:
            raise StoreDamaged(f"{self._advice()} It has lost {acknowledged - commits} acknowledged changes.")

    def _advice(self) -> str:
        return (
            f"The database {self._layout.database} or its log is damaged; no file was changed. Restore a backup, or "
            "set storage.open_from_checkpoint to open the last checkpoint: a copy of the log is kept, but what was "
            "changed since is lost."
        )

    def _set_log_aside(self, damage: StoreDamaged) -> None:
        """Leave only the checkpoint, if that is sound by itself."""
        kept = self._layout.log_copy(int(time.time()))
        log = self._layout.log
        if log.exists():
            shutil.copy2(log, kept)
            log.unlink()
        self._layout.ledger.unlink(missing_ok=True)
        try:
            self._look()
        except StoreDamaged:
            if kept.exists():
                shutil.copy2(kept, log)
            raise
        self.recovered = True
        logger.warning("Opening the last checkpoint; changes made after it are lost. Log kept as %s. %s", kept, damage)

    def _migrate(self) -> None:
        self._writer.execute("create table if not exists migrations(version integer not null)")
        (done,) = _one(self._writer, "select count(*) from migrations")
        for version, script in enumerate(MIGRATIONS[done:], done + 1):
            self._writer.begin()
            self._writer.execute(script)
            self._writer.execute("insert into migrations values (?)", [version])
            self._writer.commit()

    # --- reading ----------------------------------------------------------------------------------------------------

    @property
    def cursor(self) -> Cursor:
        """The calling thread's own cursor. It sees the last commit, also while a transaction is being written."""
        found: Cursor | None = getattr(self._local, "cursor", None)
        if found is None:
            found = self._local.cursor = self._connection.cursor()
        return found

    def new_cursor(self) -> Cursor:
        """One more cursor, for a transaction of its own; the caller closes it."""
        return self._connection.cursor()

    @property
    def lacks_records(self) -> bool:
        """Whether the last checkpoint was opened instead of a damaged log, now or before: the log's copy tells."""
        return self.recovered or bool(self._layout.log_copies())

    @property
    def bytes_on_disk(self) -> int:
        """The database and its log."""
        paths = (self._layout.database, self._layout.log)
        return sum(path.stat().st_size for path in paths if path.exists())

    # --- writing ----------------------------------------------------------------------------------------------------

    def begin(self) -> Cursor:
        """Open the transaction and give its cursor."""
        self._writer.begin()
        return self._writer

    def commit(self) -> None:
        """Make the transaction durable, then count it in the ledger."""
        self._writer.execute("update ledger set commits = commits + 1")
        self._writer.commit()
        self._commits += 1
        self._write_ledger()

    def rollback(self) -> None:
        """Undo the transaction, unless a failed commit has done so already."""
        with contextlib.suppress(duckdb.TransactionException):
            self._writer.rollback()

    def _write_ledger(self) -> None:
        # Not flushed: it survives the death of this process, and after a power cut it is at worst too low.
        os.pwrite(self._ledger, f"{self._commits:020d}\n".encode(), 0)

    def checkpoint(self) -> None:
        """Fold the log into the database, and give back space of deleted rows."""
        self._writer.execute("force checkpoint")

    def close(self) -> None:
        """Checkpoint and close; every cursor is closed with it."""
        self._connection.close()
        os.close(self._ledger)


def first(cursor: Cursor, sql: str, parameters: Sequence[object] = ()) -> tuple[Any, ...] | None:
    """The first row, or None, with the result read to its end.

    A result that is not read to its end keeps its transaction open, and with it every checkpoint waiting.
    """
    rows: list[tuple[Any, ...]] = cursor.execute(sql, parameters).fetchall()
    return rows[0] if rows else None


def _one(cursor: Cursor, sql: str) -> tuple[int, ...]:
    row = first(cursor, sql)
    if row is None:
        raise StoreDamaged(f"The database has no answer to: {sql}")
    return row


def _migrated(cursor: Cursor) -> bool:
    return bool(_one(cursor, "select count(*) from duckdb_tables() where table_name = 'migrations'")[0])


def _read_ledger(path: Path) -> int:
    try:
        return int(path.read_text())
    except (FileNotFoundError, ValueError):
        return 0  # none yet, or torn by a power cut: then there is nothing to compare
