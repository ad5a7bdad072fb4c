"""File bytes to sections of text, each format by its own reader; runs where it may be killed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePath

from rag.errors import UnsupportedFile
from rag.readers import kinds
from rag.readers.encodings import sound
from rag.readers.epub import parse_epub
from rag.readers.html import parse_html
from rag.readers.pdf import parse_pdf
from rag.readers.plain import parse_json, parse_markdown, parse_text, parse_xml
from rag.readers.rtf import parse_rtf
from rag.readers.sheets import parse_sheets
from rag.readers.slides import parse_slides
from rag.readers.word import parse_word
from rag.settings import ReaderSettings
from rag.types import ErrorCode, Section

FormatReader = Callable[[bytes, ReaderSettings], list[Section]]

_READERS: dict[str, FormatReader] = {
    **dict.fromkeys(kinds.PLAIN, parse_text),
    **dict.fromkeys(kinds.XML, parse_xml),
    **dict.fromkeys(kinds.JSON, parse_json),
    **dict.fromkeys(kinds.MARKDOWN, parse_markdown),
    **dict.fromkeys(kinds.HTML, parse_html),
    ".pdf": parse_pdf,
    ".docx": parse_word,
    ".pptx": parse_slides,
    ".xlsx": parse_sheets,
    ".epub": parse_epub,
    ".rtf": parse_rtf,
}
_MARKUP = re.compile(rb"\s*(?:<!doctype html|<html|<head|<body)", re.IGNORECASE)
_ENCRYPTED = "EncryptedPackage".encode("utf-16-le")  # the stream that a locked office document lies in


def parse(source: Path | bytes, filename: str, limits: ReaderSettings) -> list[Section]:
    """The text of a document, in order; at least one section has a character that is not white space.

    A section that ends with a line end carries its own border; the text of a plain file is kept to the letter, but for
    a byte-order mark and NUL.

    Raises:
        UnsupportedFile: of a kind that is not read (`unsupported_file`), or one that cannot be (`invalid_file`).
    """
    extension = PurePath(filename).suffix.lower()
    reader = _READERS.get(extension)
    if reader is None:
        raise UnsupportedFile(_unread(extension), ErrorCode.UNSUPPORTED_FILE)
    data = source if isinstance(source, bytes) else source.read_bytes()
    if not data:
        raise UnsupportedFile("The file is empty (0 bytes).")
    _check_content(data, extension)
    sections = [replace(section, text=sound(section.text)) for section in reader(data, limits)]
    size = sum(len(section.text) for section in sections)
    if size > limits.max_characters:
        raise UnsupportedFile(f"The file holds {size} characters of text; at most {limits.max_characters} are read.")
    if not any(section.text.strip() for section in sections):
        raise UnsupportedFile("The file has no text in it, only white space.")
    return sections


def _unread(extension: str) -> str:
    if extension in kinds.OLD:
        kind, modern = kinds.OLD[extension]
        return f"The file is {kind} ({extension}), a format that is not read; save it as {modern}."
    named = f"Files that end in '{extension}'" if extension else "Files without an extension"
    return f"{named} are not supported; text, Markdown, HTML, PDF, office documents, EPUB and program text are."


def _check_content(data: bytes, extension: str) -> None:
    """Is it what its name says?"""
    kind = kinds.signature_of(data)
    if kind == kinds.OLE and _ENCRYPTED in data:
        raise UnsupportedFile("The document is locked: it needs a password to open.")
    if extension == ".pdf" and b"%PDF-" in data[:1024]:
        return
    if extension in kinds.ARCHIVES and kind == kinds.ZIP:
        return
    if extension == ".rtf" and kind == kinds.RTF:
        return
    if kind is None and extension in kinds.SIGNED:
        kind = "an HTML page" if _MARKUP.match(data[:1024]) else None
        if kind is None:
            raise UnsupportedFile(
                f"The content is not {kinds.SIGNED[extension]}, though the name ends in '{extension}'."
            )
    if kind is not None:
        raise UnsupportedFile(
            f"The content is {kind}, though the name ends in '{extension}'.", ErrorCode.UNSUPPORTED_FILE
        )
