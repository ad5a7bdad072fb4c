"""RTF documents."""

from __future__ import annotations

import re

from striprtf.striprtf import rtf_to_text

from rag.readers.archive import reading
from rag.readers.encodings import sound
from rag.settings import ReaderSettings
from rag.types import Section

_HIGH = re.compile(rb"[\x80-\xff]")


def parse_rtf(data: bytes, limits: ReaderSettings) -> list[Section]:
    """The text of an RTF document, table rows as lines; one section."""
    # The format is ASCII; a byte above belongs to the document's code page, and so does its escape.
    escaped = _HIGH.sub(lambda found: b"\\'%02x" % found.group()[0], data.replace(b"\0", b""))
    with reading("an RTF document"):
        return [Section(sound(rtf_to_text(escaped.decode("ascii"), errors="replace")))]
