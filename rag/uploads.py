"""What an upload must be to be kept: checks that are cheap while the bytes stream by."""

from __future__ import annotations

import unicodedata
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import PurePath

from rag.errors import InvalidRequest

PURPOSES = ("assistants", "batch", "fine-tune", "vision", "user_data", "evals")
BATCH_EXPIRY_S = 30 * 86_400
MIN_EXPIRY_S = 3600
MAX_EXPIRY_S = 30 * 86_400
MAX_FILENAME = 512
PDF_MARK = b"%PDF-"
PDF_HEAD = 1024  # readers accept the mark anywhere in so many bytes


@dataclass(frozen=True, slots=True)
class ReceivedFile:
    """Bytes that lie in the blobs under `id` but belong to nobody yet."""

    id: str
    filename: str
    bytes: int
    sha256: str


def check_filename(filename: str) -> str:
    """The name as it came.

    Raises:
        InvalidRequest: empty, overlong, or with control characters.
    """
    if not filename:
        raise _invalid("The uploaded file has no name.", "file")
    if len(filename) > MAX_FILENAME:
        raise _invalid(f"The file's name has {len(filename)} characters; at most {MAX_FILENAME}.", "file")
    if any(unicodedata.category(character) == "Cc" for character in filename):
        raise _invalid("The file's name contains control characters.", "file")
    return filename


def check_purpose(purpose: str | None) -> str:
    """The purpose, if it is one that may be asked for."""
    expected = ", ".join(PURPOSES)
    if not purpose:
        message = f"Missing required parameter: 'purpose'. Expected one of: {expected}."
        raise InvalidRequest(message, "purpose", "missing_required_parameter")
    if purpose not in PURPOSES:
        raise _invalid(f"Invalid 'purpose': '{purpose}'. Expected one of: {expected}.", "purpose")
    return purpose


def expiry_seconds(purpose: str, asked: int | None) -> int | None:
    """After how many seconds an upload expires; None for never."""
    if asked is None:
        return BATCH_EXPIRY_S if purpose == "batch" else None
    if not MIN_EXPIRY_S <= asked <= MAX_EXPIRY_S:
        message = f"Invalid 'expires_after.seconds': {asked}. Expected {MIN_EXPIRY_S} to {MAX_EXPIRY_S}."
        raise _invalid(message, "expires_after.seconds")
    return asked


async def checked(filename: str, stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same bytes.

    Raises:
        InvalidRequest: there are none, or the name says PDF and the bytes do not.
    """
    head = b""
    is_pdf = PurePath(filename).suffix.lower() == ".pdf"
    async for data in stream:
        if len(head) < PDF_HEAD:
            head += data[: PDF_HEAD - len(head)]
            if is_pdf and len(head) == PDF_HEAD:
                _check_pdf(head, filename)
        yield data
    if not head:
        raise _invalid(f"The file '{filename}' is empty.", "file")
    if is_pdf:
        _check_pdf(head, filename)


def _check_pdf(head: bytes, filename: str) -> None:
    if PDF_MARK not in head:
        raise _invalid(f"The file '{filename}' is not a PDF: it does not begin with '%PDF-'.", "file")


def _invalid(message: str, param: str) -> InvalidRequest:
    return InvalidRequest(message, param, "invalid_value")
