"""PowerPoint presentations: a slide is a page; tables, groups, charts, diagrams and the speaker's notes are read."""

from __future__ import annotations

from collections.abc import Iterator

import pptx
from lxml.etree import _Element as Element
from pptx.opc.package import Part, XmlPart
from pptx.slide import Slide

from rag.errors import UnsupportedFile
from rag.readers.archive import Bounded, joined, parse_xml, reading, repacked, unpacked
from rag.settings import ReaderSettings
from rag.types import Section

_A = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_C = "{http://schemas.openxmlformats.org/drawingml/2006/chart}"
_P = "{http://schemas.openxmlformats.org/presentationml/2006/main}"
_FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"  # the same content once more
_TITLES = ("title", "ctrTitle")
_FURNITURE = ("sldNum", "dt", "hdr", "ftr", "sldImg")  # placeholders that say nothing of the matter


def parse_slides(data: bytes, limits: ReaderSettings) -> list[Section]:
    """The text of a PPTX: a section for each slide that has any, with the slide's number and title."""
    bounded = Bounded(limits)
    sections = []
    with reading("a PowerPoint presentation"):
        members = unpacked(data, "a PowerPoint presentation", limits)
        slides = pptx.Presentation(repacked(members)).slides
        if len(slides) > limits.max_pages:
            raise UnsupportedFile(f"The presentation has {len(slides)} slides; at most {limits.max_pages} are read.")
        for number, slide in enumerate(slides, start=1):
            text = joined([*_shapes(slide.element), *_parts(slide.part), _notes(slide)])
            if text:
                # The border is the slide's own: no sentence goes on from one to the next.
                sections.append(Section(bounded.take(text) + "\n\n", page=number, heading=_title(slide)))
    return sections


def _title(slide: Slide) -> str | None:
    for shape in slide.element.iter(f"{_P}sp"):
        if _placeholder(shape) in _TITLES:
            return " ".join(joined(_paragraphs(shape), " ").split()) or None
    return None


def _placeholder(shape: Element) -> str | None:
    found = shape.find(f"{_P}nvSpPr/{_P}nvPr/{_P}ph")
    return None if found is None else found.get("type", "body")


def _shapes(element: Element) -> Iterator[str]:
    """The text of each shape, in groups within groups too."""
    for child in element:
        if child.tag == _FALLBACK or (child.tag == f"{_P}sp" and _placeholder(child) in _FURNITURE):
            continue
        if child.tag == f"{_A}tbl":
            yield joined((_row(row) for row in child.iter(f"{_A}tr")), "\n")
        elif child.tag == f"{_P}txBody":
            yield joined(_paragraphs(child), "\n")
        else:
            yield from _shapes(child)


def _row(row: Element) -> str:
    cells = [cell for cell in row.iter(f"{_A}tc") if "1" not in (cell.get("hMerge"), cell.get("vMerge"))]
    return " | ".join(" ".join(joined(_paragraphs(cell), " ").split()) for cell in cells).strip()


def _paragraphs(element: Element) -> Iterator[str]:
    for paragraph in element.iter(f"{_A}p"):
        yield "".join(
            "\n" if part.tag == f"{_A}br" else part.text or "" for part in paragraph.iter(f"{_A}t", f"{_A}br")
        )


def _notes(slide: Slide) -> str:
    return joined(_shapes(slide.notes_slide.element), "\n") if slide.has_notes_slide else ""


def _parts(slide: Part) -> Iterator[str]:
    """Charts and diagrams lie in parts of their own."""
    for relation in slide.rels.values():
        if relation.is_external:
            continue
        if relation.reltype.endswith("/chart"):
            yield _chart(_root(relation.target_part))
        elif relation.reltype.endswith("/diagramData"):
            yield joined(_paragraphs(_root(relation.target_part)), "\n")


def _chart(chart: Element) -> str:
    """Titles, and the names of series and categories; the figures are left to the eye."""
    titles = [joined(_paragraphs(title), " ") for title in chart.iter(f"{_C}title")]
    names = [
        value.text or ""
        for path in ("tx", "cat")
        for near in chart.iter(f"{_C}{path}")
        for value in near.iter(f"{_C}v")
    ]
    return joined(dict.fromkeys([*titles, *names]), "\n")


def _root(part: Part) -> Element:
    return part._element if isinstance(part, XmlPart) else parse_xml(part.blob)
