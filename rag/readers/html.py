"""Pages of the web to the text that a reader of the page sees."""

from __future__ import annotations

import re
import sys

import lxml.etree
import lxml.html
from inscriptis.html_engine import Inscriptis
from inscriptis.model.config import ParserConfig

from rag.errors import UnsupportedFile
from rag.readers.encodings import decode
from rag.settings import ReaderSettings
from rag.types import Section

_HTML_HEADINGS = {f"h{level}": ["heading"] for level in range(1, 7)}
_HTML_RECURSION = 5000  # the parser stops at a depth of 2,048


def parse_html(data: bytes, limits: ReaderSettings) -> list[Section]:
    """The visible text of a page and its title: a section from each heading to the next."""
    tree = _page(decode(data, markup=True))
    title = _title(tree)
    sections, shown = _parted(tree, title)
    return sections if not title or title in shown else [Section(title, heading=title), *sections]


def parse_xhtml(data: bytes) -> list[Section]:
    """A chapter of a book: its title is the heading of what stands before the first one, and no text."""
    tree = _chapter(data)
    if tree is None:  # not as well formed as it ought to be
        tree = _page(decode(data, markup=True))
    return _parted(tree, _title(tree))[0]


def _page(text: str) -> lxml.html.HtmlElement:
    parser = lxml.html.HTMLParser(huge_tree=True, remove_comments=True, remove_pis=True)
    try:
        tree = lxml.html.document_fromstring(re.sub(r"^\s*<\?xml[^>]*\?>", "", text), parser=parser)
    except lxml.etree.ParserError as error:
        raise UnsupportedFile("The page has no text in it.") from error
    if any("Excessive depth" in entry.message for entry in parser.error_log):
        raise UnsupportedFile("The page is nested too deep to be read.")
    return tree


def _chapter(data: bytes) -> lxml.html.HtmlElement | None:
    """XHTML as XML: an empty `<title/>` or `<script/>` ends where it says, which HTML does not know."""
    parser = lxml.html.XHTMLParser(resolve_entities=False, no_network=True, remove_comments=True, remove_pis=True)
    try:
        tree = lxml.html.document_fromstring(data, parser=parser, ensure_head_body=False)
    except (lxml.etree.ParserError, lxml.etree.XMLSyntaxError):
        return None
    if next(tree.iter(lxml.etree.Entity), None) is not None:
        return None  # named signs such as &nbsp; are known to HTML alone
    lxml.html.xhtml_to_html(tree)
    return tree


def _title(tree: lxml.html.HtmlElement) -> str:
    return " ".join((tree.findtext(".//title") or "").split())


def _parted(tree: lxml.html.HtmlElement, title: str) -> tuple[list[Section], str]:
    """A section from each heading to the next, and the whole text."""
    shown, headings = _render(tree)
    sections = []
    heading = title or None
    begin = 0
    for start, end in headings:
        if shown[begin:start].strip():
            sections.append(Section(shown[begin:start].strip("\n"), heading=heading))
            begin = start
        heading = " ".join(shown[start:end].split()) or heading
    return [*sections, Section(shown[begin:].strip("\n"), heading=heading)], shown


def _render(tree: lxml.html.HtmlElement) -> tuple[str, list[tuple[int, int]]]:
    """The text as a browser would lay it out, and where its headings lie."""
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(max(usual, _HTML_RECURSION))
    try:
        page = Inscriptis(tree, ParserConfig(annotation_rules=_HTML_HEADINGS))
        text = page.get_text()
    finally:
        sys.setrecursionlimit(usual)
    text = text.replace("\xad", "").replace("\ufeff", "")
    return text, sorted((mark.start, mark.end) for mark in page.get_annotations())
