"""EPUB books: the chapters in reading order, each read as the web page that it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib.parse import unquote

from lxml.etree import _Element as Element

from rag.errors import UnsupportedFile
from rag.readers.archive import Bounded, parse_xml, reading, resolved, unpacked
from rag.readers.html import parse_xhtml
from rag.settings import ReaderSettings
from rag.types import Section

_CONTAINER = "META-INF/container.xml"
_LOCKS = "META-INF/encryption.xml"
_CHAPTERS = ("application/xhtml+xml", "text/html")


def parse_epub(data: bytes, limits: ReaderSettings) -> list[Section]:
    """The text of a book in the order of its spine, parted at the headings of its chapters."""
    with reading("an EPUB"):
        return _Book(unpacked(data, "an EPUB", limits)).sections(limits)


class _Book:
    """Members that refer to each other by name."""

    def __init__(self, members: Mapping[str, bytes]) -> None:
        self._members = members

    def sections(self, limits: ReaderSettings) -> list[Section]:
        bounded = Bounded(limits)
        chapters = [name for name in dict.fromkeys(self._spine()) if name in self._members]
        if not chapters:
            raise UnsupportedFile("The EPUB is damaged: it names no chapter that it holds.")
        if not set(chapters).isdisjoint(self._locked()):
            raise UnsupportedFile("The EPUB is locked by copy protection: its chapters are encrypted.")
        found: list[Section] = []
        for name in chapters:
            found += [part for part in parse_xhtml(self._members[name]) if bounded.take(part.text).strip()]
        return found

    def _read(self, name: str) -> bytes:
        if name not in self._members:
            raise UnsupportedFile(f"The EPUB is damaged: it names a part '{name[:200]}' that it does not hold.")
        return self._members[name]

    def _spine(self) -> Iterator[str]:
        """The names of the chapters in reading order."""
        root = next(_elements(parse_xml(self._read(_CONTAINER)), "rootfile"), None)
        if root is None:
            raise UnsupportedFile("The EPUB is damaged: it does not say where its table of parts is.")
        package = unquote(root.get("full-path", ""))
        book = parse_xml(self._read(package))
        items = {item.get("id"): item for item in _elements(book, "item")}
        for reference in _elements(book, "itemref"):
            item = items.get(reference.get("idref"))
            if item is not None and item.get("media-type") in _CHAPTERS:
                yield resolved(package, unquote(item.get("href", "")))

    def _locked(self) -> Iterator[str]:
        if _LOCKS in self._members:
            for reference in _elements(parse_xml(self._read(_LOCKS)), "CipherReference"):
                yield unquote(reference.get("URI", "")).lstrip("/")


def _elements(root: Element, name: str) -> Iterator[Element]:
    yield from root.iter("{*}" + name)
