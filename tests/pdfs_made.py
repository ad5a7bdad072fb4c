"""PDF files made by hand, sound and hostile ones, so that a test shows every byte that matters."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

FONT = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>"


def make_pdf(*objects: bytes) -> bytes:
    """A file of these objects, numbered from 1; the first is the catalog."""
    data = bytearray(b"%PDF-1.7\n")
    offsets = []
    for number, body in enumerate(objects, start=1):
        offsets.append(len(data))
        data += b"%d 0 obj\n%b\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    end = b"xref\n0 %d\n0000000000 65535 f \n%btrailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n"
    return bytes(data) + end % (len(objects) + 1, table, len(objects) + 1, len(data))


def stream(data: bytes, entries: bytes = b"") -> bytes:
    return b"<< /Length %d %b >>\nstream\n%b\nendstream" % (len(data), entries, data)


def shown(text: bytes) -> bytes:
    """The content of a page that shows one line."""
    return b"BT /F1 12 Tf 72 720 Td (%b) Tj ET" % text


def pages_pdf(
    contents: Sequence[bytes],
    *,
    font: bytes = FONT,
    extra: Sequence[bytes] = (),
    forms: bytes = b"",
    packed: bool = False,
) -> bytes:
    """A page for each content; `extra` objects are numbered from 4."""
    first = 4 + len(extra)
    kids = b" ".join(b"%d 0 R" % (first + 2 * index) for index in range(len(contents)))
    resources = b"<< /Font << /F1 3 0 R >> /XObject << %b >> >>" % forms
    page = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Resources %b /Contents %d 0 R >>"
    pages = []
    for index, content in enumerate(contents):
        body = stream(zlib.compress(content, 9), b"/Filter /FlateDecode") if packed else stream(content)
        pages += [page % (resources, first + 2 * index + 1), body]
    tree = b"<< /Type /Pages /Kids [%b] /Count %d >>" % (kids, len(contents))
    return make_pdf(b"<< /Type /Catalog /Pages 2 0 R >>", tree, font, *extra, *pages)


def text_pdf(*lines: str) -> bytes:
    """A page for each line."""
    return pages_pdf([shown(line.encode("cp1252")) for line in lines])


GREY = b"0.5 g 100 100 300 300 re f"


# --- hostile ones ---------------------------------------------------------------------------------------------------


def two_million_operators() -> bytes:
    """Some ten kilobytes that unpack to minutes of work."""
    return pages_pdf([b"BT /F1 12 Tf " + b"1 0 Td (x) Tj\n" * 2_000_000 + b"ET"], packed=True)


def tree_in_itself() -> bytes:
    return make_pdf(b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Kids [2 0 R] /Count 1 >>")


def form_in_itself() -> bytes:
    form = stream(
        b"BT /F1 12 Tf 72 700 Td (A form in a form.) Tj ET /X1 Do",
        b"/Type /XObject /Subtype /Form /BBox [0 0 612 792] "
        b"/Resources << /Font << /F1 3 0 R >> /XObject << /X1 4 0 R >> >>",
    )
    return pages_pdf([shown(b"Before the form.") + b" /X1 Do"], extra=[form], forms=b"/X1 4 0 R")


def image_without_end() -> bytes:
    return pages_pdf([b"BI /W 9 /H 9 /BPC 8 /CS /G ID " + b"\x80" * 40])


def cut_in_half() -> bytes:
    whole = text_pdf("The tide turned.", "The boats came home.")
    return whole[: len(whole) // 2]
