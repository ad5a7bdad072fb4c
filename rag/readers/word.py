"""Word documents: paragraphs, tables, text boxes, notes, heads and feet, parted at their headings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import docx
from docx.document import Document
from docx.opc.part import Part
from lxml.etree import _Element as Element

from rag.readers.archive import Bounded, joined, parse_xml, reading, repacked, unpacked
from rag.settings import ReaderSettings
from rag.types import Section

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_M = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
_FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"  # the same content once more
_P, _TABLE, _ROW, _CELL, _BOX = f"{_W}p", f"{_W}tbl", f"{_W}tr", f"{_W}tc", f"{_W}txbxContent"
_WRAPPERS = {f"{_W}{name}" for name in ("sdt", "sdtContent", "customXml", "smartTag", "ins", "moveTo")}
_HIDDEN = {_FALLBACK, _BOX, f"{_W}del", f"{_W}moveFrom", f"{_W}rPr", f"{_W}pPr"}
_SIGNS = {f"{_W}tab": "\t", f"{_W}ptab": "\t", f"{_W}br": "\n", f"{_W}cr": "\n", f"{_W}noBreakHyphen": "-"}
_TEXTS = {f"{_W}t", f"{_M}t"}
_NOTES = ("/footnotes", "/endnotes")
_LONGEST_HEADING = 200  # characters; what is longer is a paragraph in a heading's clothes


def parse_word(data: bytes, limits: ReaderSettings) -> list[Section]:
    """The text of a DOCX: a section from each heading to the next; notes, heads and feet come last."""
    with reading("a Word document"):
        members = unpacked(data, "a Word document", limits)
        document = docx.Document(repacked(members))
        walk = _Walk(_heading_styles(document), Bounded(limits))
        walk.blocks(document.element.body)
        walk.end()
        margin = joined(dict.fromkeys([*_notes(document), *_heads_and_feet(document)]))
    return [*walk.sections, Section(margin)] if margin else walk.sections


@dataclass(slots=True)
class _Walk:
    """The sections so far, and the one that is being read."""

    headings: set[str]
    bounded: Bounded
    sections: list[Section] = field(default_factory=list)
    heading: str | None = None
    text: list[str] = field(default_factory=list)
    in_list: bool = False

    def blocks(self, parent: Element) -> None:
        for block in _children(parent, _P, _TABLE):
            if block.tag == _TABLE:
                self._table(block)
            else:
                self._paragraph(block)

    def end(self) -> None:
        text = "".join(self.text)
        if text.strip():
            self.sections.append(Section(text, heading=self.heading))
        self.text = []

    def _paragraph(self, block: Element) -> None:
        text = _text(block)
        if text.strip() and self._is_heading(block):
            self.end()
            self.heading = " ".join(text.split())[:_LONGEST_HEADING]
        listed = block.find(f"{_W}pPr/{_W}numPr") is not None
        self._add(text, "\n" if listed and self.in_list else "\n\n")
        self.in_list = listed
        for box in _boxes(block):
            self.blocks(box)

    def _table(self, block: Element) -> None:
        rows: list[str] = []
        for row in _children(block, _ROW):
            cells = list(_children(row, _CELL))
            if len(cells) == 1:  # a frame around text rather than a row
                self._add(joined(rows, "\n"), "\n\n")
                rows = []
                self.blocks(cells[0])
            else:
                rows.append(" | ".join(_cell(cell) for cell in cells).strip())
        self._add(joined(rows, "\n"), "\n\n")
        self.in_list = False

    def _add(self, text: str, border: str) -> None:
        if text.strip():
            self.text += [border, self.bounded.take(text)] if self.text else [self.bounded.take(text)]

    def _is_heading(self, block: Element) -> bool:
        style = block.find(f"{_W}pPr/{_W}pStyle")
        own = block.find(f"{_W}pPr/{_W}outlineLvl")
        return _is_outline(own) or (style is not None and style.get(f"{_W}val") in self.headings)


def _children(parent: Element, *tags: str) -> Iterator[Element]:
    """The children with these tags, whatever wraps them."""
    for child in parent:
        if child.tag in tags:
            yield child
        elif child.tag in _WRAPPERS:
            yield from _children(child, *tags)


def _text(element: Element) -> str:
    """What a paragraph shows, text boxes left out."""
    parts: list[str] = []
    for child in element:
        if child.tag in _TEXTS:
            parts.append(child.text or "")
        elif child.tag in _SIGNS:
            parts.append(_SIGNS[child.tag])
        elif child.tag not in _HIDDEN:
            parts.append(_text(child))
    return "".join(parts)


def _boxes(element: Element) -> Iterator[Element]:
    for child in element:
        if child.tag == _BOX:
            yield child
        elif child.tag not in _HIDDEN:
            yield from _boxes(child)


def _cell(cell: Element) -> str:
    """A cell in one line; tables within it as well. Cells that go on from the row above are empty."""
    merge = cell.find(f"{_W}tcPr/{_W}vMerge")
    if merge is not None and merge.get(f"{_W}val") != "restart":
        return ""
    return " ".join(" ".join(_lines(cell)).split())


def _lines(parent: Element) -> Iterator[str]:
    """Every paragraph below, those of tables and text boxes included."""
    for block in _children(parent, _P, _TABLE):
        if block.tag == _P:
            yield _text(block)
            for box in _boxes(block):
                yield from _lines(box)
        else:
            for row in _children(block, _ROW):
                yield " ".join(_cell(cell) for cell in _children(row, _CELL))


# --- styles and parts beside the text -------------------------------------------------------------------------------


def _heading_styles(document: Document) -> set[str]:
    """The ids of the styles that make a heading: named so, on a level of the outline, or based on such a one."""
    styles = {style.get(f"{_W}styleId", ""): style for style in document.styles.element.iter(f"{_W}style")}
    return {style_id for style_id in styles if _is_heading_style(style_id, styles)}


def _is_heading_style(style_id: str, styles: dict[str, Element]) -> bool:
    seen: set[str] = set()
    while style_id in styles and style_id not in seen:
        seen.add(style_id)
        style = styles[style_id]
        name = style.find(f"{_W}name")
        spelt = "" if name is None else name.get(f"{_W}val", "").lower()
        if spelt == "title" or spelt.startswith("heading "):
            return True
        level = style.find(f"{_W}pPr/{_W}outlineLvl")
        if level is not None:
            return _is_outline(level)
        base = style.find(f"{_W}basedOn")
        style_id = "" if base is None else base.get(f"{_W}val", "")
    return False


def _is_outline(level: Element | None) -> bool:
    return level is not None and level.get(f"{_W}val") in list("012345678")  # nine is the body


def _notes(document: Document) -> Iterator[str]:
    for part in _related(document.part, _NOTES):
        for note in parse_xml(part.blob):
            yield joined(_lines(note), "\n")


def _heads_and_feet(document: Document) -> Iterator[str]:
    for part in _related(document.part, ("/header", "/footer")):
        text = joined(_lines(parse_xml(part.blob)), "\n")
        if any(char.isalpha() for char in text):  # more than a page number
            yield text


def _related(part: Part, kinds: tuple[str, ...]) -> Iterator[Part]:
    for relation in part.rels.values():
        if not relation.is_external and relation.reltype.endswith(kinds):
            yield relation.target_part
