"""Settings of what is kept and how it is indexed."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rag.settings import Branch


class IndexSettings(Branch):
    """The dense index of a vector store."""

    device: Literal["cpu", "cuda"] = Field("cpu", description="cuda: FAISS on the GPU assigned to the store.")
    tail: int = Field(4096, ge=1, description="New chunks that are kept beside the index until it is rebuilt.")


class StorageSettings(Branch):
    """The data directory's owner."""

    lock_wait_s: float = Field(30.0, ge=0, description="How long to wait for a leaving owner of the data directory.")
    open_from_checkpoint: bool = Field(
        False, description="Open a database with a damaged log from its last checkpoint; a copy is kept."
    )
    readers: int = Field(4, ge=1, description="Threads that answer searches.")
    threads: int | None = Field(None, ge=1, description="CPU threads for DuckDB and FAISS; those assigned by default.")
    index: IndexSettings = IndexSettings()
