"""Office documents and books made by hand, sound and hostile ones."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Mapping

import docx
import openpyxl
import pptx
from openpyxl.workbook import Workbook
from pptx.presentation import Presentation

W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
VML = "urn:schemas-microsoft-com:vml"
MC = "http://schemas.openxmlformats.org/markup-compatibility/2006"
MATH = "http://schemas.openxmlformats.org/officeDocument/2006/math"


def packed(members: Mapping[str, str | bytes]) -> bytes:
    """An archive of these members."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def members_of(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def word(*paragraphs: str) -> bytes:
    document = docx.Document()
    for paragraph in paragraphs:
        document.add_paragraph(paragraph)
    return saved_word(document)


def saved_word(document: docx.document.Document) -> bytes:
    buffer = io.BytesIO()
    document.save(buffer)
    return buffer.getvalue()


def word_of(body: str) -> bytes:
    """A Word document whose body is this XML; prefixes w, v, mc and m are bound."""
    members = members_of(word())
    root = f'<w:document xmlns:w="{W}" xmlns:v="{VML}" xmlns:mc="{MC}" xmlns:m="{MATH}">'
    return packed(members | {"word/document.xml": f"{root}<w:body>{body}</w:body></w:document>".encode()})


def run(text: str) -> str:
    return f"<w:r><w:t>{text}</w:t></w:r>"


def paragraph(text: str) -> str:
    return f"<w:p>{run(text)}</w:p>"


def saved_slides(presentation: Presentation) -> bytes:
    buffer = io.BytesIO()
    presentation.save(buffer)
    return buffer.getvalue()


def slides(*titles: str) -> bytes:
    presentation = pptx.Presentation()
    for title in titles:
        slide = presentation.slides.add_slide(presentation.slide_layouts[5])
        slide.shapes.title.text = title
    return saved_slides(presentation)


def saved_sheets(workbook: Workbook) -> bytes:
    buffer = io.BytesIO()
    workbook.save(buffer)
    return buffer.getvalue()


def sheets(**rows: list[list[object]]) -> bytes:
    workbook = openpyxl.Workbook()
    workbook.remove(workbook.active)
    for name, values in rows.items():
        sheet = workbook.create_sheet(name)
        for row in values:
            sheet.append(row)
    return saved_sheets(workbook)


CONTAINER = (
    '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container" version="1.0">'
    '<rootfiles><rootfile full-path="text/book.opf" media-type="application/oebps-package+xml"/></rootfiles>'
    "</container>"
)


def book(chapters: Mapping[str, str], spine: list[str] | None = None, extra: Mapping[str, str] | None = None) -> bytes:
    """An EPUB of these chapters by file name; the spine lists them in the order of reading."""
    items = "".join(
        f'<item id="{name}" href="{name.replace(" ", "%20")}" media-type="application/xhtml+xml"/>' for name in chapters
    )
    order = "".join(f'<itemref idref="{name}"/>' for name in spine or chapters)
    package = (
        '<package xmlns="http://www.idpf.org/2007/opf" version="3.0">'
        f"<manifest>{items}</manifest><spine>{order}</spine></package>"
    )
    return packed(
        {"mimetype": "application/epub+zip", "META-INF/container.xml": CONTAINER, "text/book.opf": package}
        | {f"text/{name}": chapter for name, chapter in chapters.items()}
        | dict(extra or {})
    )


def chapter(title: str, *paragraphs: str) -> str:
    text = "".join(f"<p>{paragraph}</p>" for paragraph in paragraphs)
    return (
        '<?xml version="1.0" encoding="utf-8"?><html xmlns="http://www.w3.org/1999/xhtml">'
        f"<head><title/></head><body><h1>{title}</h1>{text}</body></html>"
    )


SOUND = {
    "a.docx": lambda: word("The tide turned."),
    "a.pptx": lambda: slides("The tide turned."),
    "a.xlsx": lambda: sheets(Tides=[["The tide turned."]]),
    "a.epub": lambda: book({"one.xhtml": chapter("Tides", "The tide turned.")}),
}


# --- hostile ones ---------------------------------------------------------------------------------------------------


def with_lie(data: bytes, name: str, size: int, declared: int) -> bytes:
    """The archive and one more member of zeros, which says that it is far smaller than it is."""
    raw = zlib.compressobj(9, zlib.DEFLATED, -15)
    deflated = raw.compress(bytes(size)) + raw.flush()
    buffer = io.BytesIO(data)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr(zipfile.ZipInfo(name), deflated)
    lying = bytearray(buffer.getvalue())
    head = struct.pack("<HHHLLL", 8, 0, 33, zlib.crc32(bytes(declared)), len(deflated), declared)
    local = lying.rindex(b"PK\x03\x04", 0, lying.index(name.encode()))
    central = lying.rindex(b"PK\x01\x02")
    lying[local + 8 : local + 26] = head
    lying[central + 10 : central + 28] = head
    return bytes(lying)
