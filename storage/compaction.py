"""A database without its gaps: copied whole, then put in the place of the old one."""

from __future__ import annotations

import os
from contextlib import closing

import duckdb

from rag.errors import StoreDamaged
from storage.database import Database
from storage.layout import ShardLayout
from storage.lock import DirectoryLock


def compact(layout: ShardLayout, *, threads: int) -> tuple[int, int]:
    """Give deleted space back to the disk; gives the bytes before and after. Until the copy is whole and flushed the
    old database stays in its place, and what a killed compaction leaves is overwritten by the next.

    Raises:
        StoreLocked: the service that owns the directory is running.
        StoreDamaged: the database cannot be opened, or was not copied whole, for lack of room perhaps.
    """
    lock = DirectoryLock(layout.lock, wait_s=0)
    try:
        with closing(Database(layout, threads=threads)) as database:
            # Closing folds the log in as well, but says nothing where it fails; and a log never fits a copy.
            database.checkpoint()
        before = layout.database.stat().st_size
        layout.copy.unlink(missing_ok=True)
        _copy(layout)
        _flush(layout)
        layout.copy.replace(layout.database)
        return before, layout.database.stat().st_size
    except duckdb.Error as error:
        raise StoreDamaged(f"The database could not be copied and is left as it was. DuckDB says: {error}") from error
    finally:
        for path in (layout.copy, layout.copy_log):  # they take room, and the disk may be full
            path.unlink(missing_ok=True)
        lock.release()


def _copy(layout: ShardLayout) -> None:
    with duckdb.connect() as connection:
        connection.execute(f"attach {_quoted(layout.database)} as old (read_only)")
        connection.execute(f"attach {_quoted(layout.copy)} as new")
        connection.execute("copy from database old to new")
        tables = connection.execute("select table_name from duckdb_tables() where database_name = 'old'").fetchall()
        for (table,) in tables:
            counts = {
                connection.execute(f"select count(*) from {side}.{table}").fetchall()[0] for side in ("old", "new")
            }
            if len(counts) > 1:
                raise StoreDamaged(f"The table {table} was not copied whole; the database is left as it was.")
        connection.execute("detach old")
        connection.execute("detach new")


def _flush(layout: ShardLayout) -> None:
    for path in (layout.copy, layout.root):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _quoted(path: os.PathLike[str]) -> str:
    return "'" + os.fspath(path).replace("'", "''") + "'"
