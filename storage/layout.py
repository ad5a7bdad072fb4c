"""Where everything in a data directory lies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """The paths of one data directory; nothing else in the project joins them."""

    root: Path

    @property
    def lock(self) -> Path:
        """Held by the process that owns the directory."""
        return self.root / "lock"

    @property
    def database(self) -> Path:
        """Everything but the uploaded bytes."""
        return self.root / "store.duckdb"

    @property
    def log(self) -> Path:
        """The database's write-ahead log: commits since the last checkpoint."""
        return self.root / "store.duckdb.wal"

    @property
    def ledger(self) -> Path:
        """How many commits have been acknowledged."""
        return self.root / "commits"

    @property
    def blobs(self) -> Path:
        """Uploaded bytes, one file each."""
        return self.root / "blobs"

    @property
    def copy(self) -> Path:
        """A database that is about to take the place of the other."""
        return self.root / "store.duckdb.compact"

    @property
    def copy_log(self) -> Path:
        """The log of that one while it is being written."""
        return self.root / "store.duckdb.compact.wal"

    def log_copy(self, when: int) -> Path:
        """Where a damaged log is kept; `when` in Unix seconds."""
        return self.root / f"store.duckdb.wal.damaged-{when}"

    def log_copies(self) -> list[Path]:
        """The damaged logs that are kept."""
        return sorted(self.root.glob("store.duckdb.wal.damaged-*"))
