"""What an owner may keep, checked in the transaction that would keep it."""

from __future__ import annotations

from rag.errors import InvalidRequest, UnsupportedFile
from rag.settings import QuotaSettings
from rag.types import FileRecord, IngestedPart
from storage import ingestion
from storage.database import Cursor, first


class Quotas:
    """The limits of each owner; a limit that is None lets everything pass."""

    def __init__(self, limits: QuotaSettings) -> None:
        self._limits = limits

    def check_file(self, cursor: Cursor, record: FileRecord) -> None:
        """Raises InvalidRequest where one more upload is one too many."""
        limits = self._limits
        if limits.max_files is None and limits.max_file_bytes is None:
            return
        held = first(
            cursor, "select count(*), coalesce(sum(bytes), 0)::bigint from files where owner = ?", [record.owner]
        )
        count, size = held or (0, 0)
        if limits.max_files is not None and count >= limits.max_files:
            raise _full(f"You have {count} of {limits.max_files} uploaded files. Delete some first.", "file")
        if limits.max_file_bytes is not None and size + record.bytes > limits.max_file_bytes:
            raise _full(
                f"The file has {record.bytes} bytes, and of {limits.max_file_bytes} bytes for uploads "
                f"{max(0, limits.max_file_bytes - size)} are left. Delete some files first.",
                "file",
            )

    def check_store(self, cursor: Cursor, owner: str) -> None:
        """Raises InvalidRequest where one more vector store is one too many."""
        limit = self._limits.max_stores
        if limit is None:
            return
        (count,) = first(cursor, "select count(*) from vector_stores where owner = ?", [owner]) or (0,)
        if count >= limit:
            raise _full(f"You have {count} of {limit} vector stores. Delete one first.", None)

    def room(self, cursor: Cursor, attachment: ingestion.OpenAttachment) -> int | None:
        """Bytes of text that are left for this file; None for any number."""
        limit = self._limits.max_store_bytes
        if limit is None:
            return None
        return ingestion.room(cursor, attachment.owner, limit, beside=attachment.key)

    def check_text(self, cursor: Cursor, attachment: ingestion.OpenAttachment, part: IngestedPart) -> None:
        """Raises UnsupportedFile where others have taken the room since the file was begun."""
        room = self.room(cursor, attachment)
        if room is None:
            return
        kept = 0 if part.is_first else attachment.usage_bytes
        if kept + part.usage_bytes > room:
            raise UnsupportedFile("The quota for text in vector stores was used up while the file was ingested.")


def _full(message: str, param: str | None) -> InvalidRequest:
    return InvalidRequest(message, param, "quota_exceeded")
