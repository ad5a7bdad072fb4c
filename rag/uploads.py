"""What an upload must be to be kept: checks while the bytes stream by, none of which holds more than a piece."""

from __future__ import annotations

import asyncio
import functools
import unicodedata
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import PurePath
from typing import ClassVar, Protocol

from rag.errors import InvalidRequest
from rag.readers import kinds
from rag.readers.json_check import JsonCheck
from rag.readers.kinds import signature_of
from rag.readers.unicode_forms import UnicodeCheck

PURPOSES = ("assistants", "batch", "fine-tune", "vision", "user_data", "evals")
BATCH_EXPIRY_S = 30 * 86_400
MIN_EXPIRY_S = 3600
MAX_EXPIRY_S = 30 * 86_400
MAX_FILENAME = 512
PDF_MARK = b"%PDF-"
PDF_HEAD = 1024  # readers accept the mark anywhere in so many bytes
SIGNATURE = 32  # bytes by which kinds of files are known


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
        code = "integer_below_min_value" if asked < MIN_EXPIRY_S else "integer_above_max_value"
        raise InvalidRequest(message, "expires_after.seconds", code)
    return asked


async def checked(filename: str, stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same bytes.

    Raises:
        InvalidRequest: there are none, or they are not what the name says: a PDF, JSON, or text in a form of Unicode.
            What is known as something else by its first bytes may be kept under any name of a text.
    """
    make = _CHECKS.get(PurePath(filename).suffix.lower())
    check = make() if make else None
    empty = True
    async for data in stream:
        empty = empty and not data
        if check is not None:
            await _look(filename, check, functools.partial(check.feed, data))
        yield data
    if empty:
        raise _invalid(f"The file '{filename}' is empty.", "file")
    if check is not None:
        await _look(filename, check, check.close)


async def _look(filename: str, check: _Check, step: Callable[[], None]) -> None:
    try:
        if check.heavy:
            await asyncio.to_thread(step)
        else:
            step()
    except ValueError as error:
        raise _invalid(f"The file '{filename}' is refused. {error}", "file") from error


class _Check(Protocol):
    """Sees the bytes as they come; ValueError says in a sentence why they are refused."""

    heavy: ClassVar[bool]  # too much work for an event loop

    def feed(self, data: bytes) -> None: ...

    def close(self) -> None: ...


class _PdfCheck:
    """The mark of a PDF, anywhere in the first bytes."""

    heavy: ClassVar[bool] = False

    def __init__(self) -> None:
        self._head = b""

    def feed(self, data: bytes) -> None:
        missing = PDF_HEAD - len(self._head)
        self._head += data[:missing]
        if missing and len(self._head) == PDF_HEAD:
            self.close()

    def close(self) -> None:
        if PDF_MARK not in self._head:
            raise ValueError("It is not a PDF: it does not begin with '%PDF-'.")


class _TextCheck:
    """Text in a form of Unicode, or else something that is no text at all."""

    heavy: ClassVar[bool] = False

    def __init__(self) -> None:
        self._head = b""
        self._unicode: UnicodeCheck | None = UnicodeCheck()

    def feed(self, data: bytes) -> None:
        self._head += data[: SIGNATURE - len(self._head)]
        if self._unicode is not None:
            self._take(functools.partial(self._unicode.feed, data))

    def close(self) -> None:
        if self._unicode is not None:
            self._take(self._unicode.close)

    def _take(self, step: Callable[[], str]) -> None:
        try:
            step()
        except ValueError:
            if signature_of(self._head) is None:
                raise
            self._unicode = None  # kept, like any kind that is not read


class _JsonCheck:
    """JSON in a form of Unicode."""

    heavy: ClassVar[bool] = True

    def __init__(self) -> None:
        self._unicode = UnicodeCheck()
        self._json = JsonCheck()

    def feed(self, data: bytes) -> None:
        self._json.feed(self._unicode.feed(data).encode())

    def close(self) -> None:
        self._json.feed(self._unicode.close().encode())
        self._json.close()


_CHECKS: dict[str, Callable[[], _Check]] = {
    **dict.fromkeys(kinds.UNICODE, _TextCheck),
    **dict.fromkeys(kinds.JSON, _JsonCheck),
    ".pdf": _PdfCheck,
}


def _invalid(message: str, param: str) -> InvalidRequest:
    return InvalidRequest(message, param, "invalid_value")
