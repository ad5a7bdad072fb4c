"""PDF pages to running text: fonts without a Unicode map, running heads, broken words and lines."""

from __future__ import annotations

import functools
import io
import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from pypdf import PageObject, PasswordType, PdfReader
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject, StreamObject

from rag.errors import UnsupportedFile
from rag.readers.ocr import recognised
from rag.settings import ReaderSettings
from rag.types import Section

logger = logging.getLogger(__name__)

_SENTENCE_END = ".!?。！？…।؟۔"
_CLOSING = "\"'”’»)]」』）"
_LIST_ITEM = re.compile(r"(?:[•▪◦●‣·*–—-]|\(?\d{1,3}[.)]|\(?[a-zA-Z][.)])\s")
_WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
_SOFT_HYPHENS = "\u2010\u00ad"
_HYPHENS = _SOFT_HYPHENS + "-"
# Chinese, Japanese, Thai, Lao, Khmer, Burmese: a line may end anywhere and no blank stands for its end.
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef]")
# Presentation forms and radicals that stand for ordinary letters; other compatibility characters (², ½, ①) are content.
_DISGUISED = re.compile(r"[\u2f00-\u2fdf\ufb00-\ufb4f\ufb50-\ufdff\ufe70-\ufefc]+")
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f\ufeff]")
_UNREADABLE = re.compile(r"[\ue000-\ue0ff\ufffd]")  # what `_mend_font` makes of codes that nobody can map
# The signs of JIS X 0208 that have a form of their own in vertical lines: marks, brackets, small kana.
_JAPANESE_VERTICAL = (
    *(0x2122, 0x2123, 0x2131, 0x2132, 0x213C, 0x213D, 0x213E, *range(0x2141, 0x2146), *range(0x214A, 0x215C), 0x2161),
    *(0x2421, 0x2423, 0x2425, 0x2427, 0x2429, 0x2443, 0x2463, 0x2465, 0x2467, 0x246E),
    *(0x2521, 0x2523, 0x2525, 0x2527, 0x2529, 0x2543, 0x2563, 0x2565, 0x2567, 0x256E, 0x2575, 0x2576),
)
_NO_TEXT_LAYER = (
    "The PDF has no text layer: its pages are empty, scanned or drawn. Scanned pages can be read by OCR, "
    "which the setting `reader.ocr` switches on."
)
_NOTHING_RECOGNISED = "The PDF has no text layer, and OCR (the setting `reader.ocr`) found no text on its pages."
_HYPHENATED = 0.03  # the share of lines that end in a hyphen where a text is hyphenated at all
_EDGE_LINES = 2  # how many lines from the top and the bottom a running head may stand


def parse_pdf(data: bytes, limits: ReaderSettings) -> list[Section]:
    """One section for each page that has text."""
    return [Section(text, page=number) for number, text in enumerate(pages(data, limits), start=1) if text.strip()]


def pages(data: bytes, limits: ReaderSettings) -> list[str]:
    """The text of each page, empty where a page has none.

    Raises:
        UnsupportedFile: locked, damaged, over a limit, without text, or with text that means nothing.
    """
    reader = _open(data, limits)
    raw: list[str] = []
    size = failed = 0
    for number in range(len(reader.pages)):
        try:
            raw.append(_page_text(reader, number))
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - a damaged page may raise anything; the others are still worth reading
            logger.warning("page %d cannot be read: %s: %s", number + 1, type(error).__name__, error)
            raw.append("")
            failed += 1
        size += len(raw[-1])
        if size > limits.max_characters:
            raise UnsupportedFile(f"The file holds more than {limits.max_characters} characters of text.")
    lacking = [number for number, text in enumerate(raw) if not _UNREADABLE.sub("", text).strip()]
    if lacking and limits.ocr:
        for number, text in recognised(data, lacking, limits, needed=len(lacking) == len(raw)):
            raw[number] = text
    _check_meaning(raw, failed, limits)
    return reflow([_UNREADABLE.sub("", text) for text in raw])


def _open(data: bytes, limits: ReaderSettings) -> PdfReader:
    try:
        reader = PdfReader(io.BytesIO(data), strict=False)
        locked = reader.is_encrypted and reader.decrypt("") == PasswordType.NOT_DECRYPTED
        count = 0 if locked else len(reader.pages)
    except MemoryError:
        raise
    except Exception as error:
        raise UnsupportedFile(_damage(data, error)) from error
    if locked:
        raise UnsupportedFile("The PDF is locked: it needs a password to open.")
    if not count:
        raise UnsupportedFile("The PDF has no pages.")
    if count > limits.max_pages:
        raise UnsupportedFile(f"The PDF has {count} pages; at most {limits.max_pages} are read.")
    return reader


def _damage(data: bytes, error: Exception) -> str:
    if b"%%EOF" not in data[-2048:]:
        return "The PDF is cut off: its end is missing, and no page can be read."
    if b"/Pages" not in data:
        return "The PDF is damaged: it has no page tree, so no page can be read."
    return f"The PDF is damaged: no page can be read ({str(error)[:200]})."


def _page_text(reader: PdfReader, number: int) -> str:
    page: PageObject = reader.pages[number]
    _mend_fonts(page.get("/Resources"), set())
    text = page.extract_text()
    # Halves of a character are put together, lone ones dropped.
    text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "ignore")
    text = _DISGUISED.sub(lambda found: unicodedata.normalize("NFKC", found.group()), text)
    return _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n"))


def _check_meaning(raw: list[str], failed: int, limits: ReaderSettings) -> None:
    text = "".join(raw)
    readable = _UNREADABLE.sub("", text)
    if not readable.strip():
        if failed:
            raise UnsupportedFile("The PDF is damaged: none of its pages can be read.")
        if text.strip():
            raise UnsupportedFile("Only meaningless signs come out of the PDF: its fonts have no Unicode map.")
        raise UnsupportedFile(_NOTHING_RECOGNISED if limits.ocr else _NO_TEXT_LAYER)
    visible = re.sub(r"(\S)\1+", r"\1", "".join(readable.split()))  # dotted leaders count once
    letters = sum(unicodedata.category(char)[0] in "LNM" for char in visible[:100_000])
    if letters * 2 < min(len(visible), 100_000):
        raise UnsupportedFile("Only meaningless signs come out of the PDF: its fonts have no Unicode map.")


# --- fonts ----------------------------------------------------------------------------------------------------------


def _mend_fonts(resources: object, seen: set[int]) -> None:
    """Give every font that needs one a Unicode map, in forms inside forms as well."""
    resources = _plain(resources)
    if not isinstance(resources, DictionaryObject) or id(resources) in seen:
        return
    seen.add(id(resources))
    for font in _values(resources, "/Font"):
        _mend_font(font)
    for form in _values(resources, "/XObject"):
        _mend_fonts(form.get("/Resources"), seen)


def _plain(value: object) -> object:
    return value.get_object() if hasattr(value, "get_object") else value


def _values(resources: DictionaryObject, key: str) -> Iterator[DictionaryObject]:
    table = _plain(resources.get(key))
    if isinstance(table, DictionaryObject):
        for value in table.values():
            value = _plain(value)
            if isinstance(value, DictionaryObject):
                yield value


def _mend_font(font: DictionaryObject) -> None:
    """Glyph numbers of a composite font without a Unicode map would otherwise be taken for characters."""
    if "/ToUnicode" in font or font.get("/Encoding") not in ("/Identity-H", "/Identity-V"):
        return
    descendants = _plain(font.get("/DescendantFonts"))
    descendant = _plain(descendants[0]) if isinstance(descendants, list) and descendants else None
    system = _plain(descendant.get("/CIDSystemInfo")) if isinstance(descendant, DictionaryObject) else None
    ordering = _plain(system.get("/Ordering")) if isinstance(system, DictionaryObject) else None
    font[NameObject("/ToUnicode")] = _japanese_map() if ordering == "Japan1" else _unreadable_map()


def _unicode_map(body: str) -> StreamObject:
    stream = DecodedStreamObject()
    text = f"1 begincodespacerange\n<0000> <ffff>\nendcodespacerange\n{body}\nendcmap\n"
    stream.set_data(f"begincmap\n{text}".encode("ascii"))
    return stream


@functools.cache
def _japanese_map() -> StreamObject:
    """Adobe-Japan1: glyph 633 and on are the signs of JIS X 0208 in its order, without gaps and without row 8."""
    rows = (*range(0x21, 0x28), *range(0x30, 0x75))
    codes = [row << 8 | cell for row in rows for cell in range(0x21, 0x7F)]
    glyphs = dict(enumerate((sign for code in codes if (sign := _jis(code))), start=633))
    for start in (1, 231):  # proportional and half-width Latin
        glyphs |= {start + i: chr(0x20 + i) for i in range(95)}
    glyphs |= dict(enumerate((_jis(code) for code in _JAPANESE_VERTICAL), start=7887))
    body = "\n".join(f"<{glyph:04x}> <{ord(sign):04x}>" for glyph, sign in glyphs.items())
    return _unicode_map(f"{len(glyphs)} beginbfchar\n{body}\nendbfchar")


def _jis(code: int) -> str:
    """The sign at a place of JIS X 0208; empty where there is none."""
    return bytes((code >> 8 | 0x80, code & 0xFF | 0x80)).decode("euc_jp", "ignore")


@functools.cache
def _unreadable_map() -> StreamObject:
    body = "\n".join(f"<{high:02x}00> <{high:02x}ff> <e000>" for high in range(256))
    return _unicode_map(f"256 beginbfrange\n{body}\nendbfrange")


# --- lines to paragraphs --------------------------------------------------------------------------------------------


def reflow(raw: list[str]) -> list[str]:
    """Join the lines of each page to paragraphs, mend words broken at line ends, drop repeated heads and page numbers.

    A running head is kept where it first occurs. A word broken by a page border goes to the page where it begins.
    """
    lines = [[re.sub(r"(?<=\S)[ \t\xa0]+", " ", line).rstrip() for line in text.split("\n")] for text in raw]
    words = Counter(word.lower() for page in lines for line in page for word in _WORD.findall(line))
    ends = [line[-1] for page in lines for line in page if line]
    hard = "\u2010" in ends or ends.count("-") < _HYPHENATED * len(ends)  # then a plain hyphen belongs to its word
    lines = _without_running_lines(lines)
    _mend_page_borders(lines)
    return [_paragraphs(page, words, hard) for page in lines]


def _edges(page: list[str]) -> list[int]:
    filled = [i for i, line in enumerate(page) if line.strip()]
    return sorted({*filled[:_EDGE_LINES], *filled[-_EDGE_LINES:]})


def _without_running_lines(lines: list[list[str]]) -> list[list[str]]:
    """A line at a page's edge is running if most pages have it, figures aside, or if it counts the pages."""
    shapes: Counter[str] = Counter()
    offsets: Counter[int] = Counter()
    for number, page in enumerate(lines):
        edge = [page[i].strip() for i in _edges(page)]
        shapes.update({re.sub(r"\d+", "#", line) for line in edge})
        offsets.update({int(found) - number for line in edge if (found := _page_number(line))})
    enough = len(lines) / 2
    heads = {shape for shape, count in shapes.items() if count >= max(3, enough) and re.search(r"[^\W\d_]{2}", shape)}
    starts = {offset for offset, count in offsets.items() if count >= max(2, enough)}
    kept: set[str] = set()
    result = []
    for number, page in enumerate(lines):
        first: list[str] = []
        dropped = set()
        for i in _edges(page):
            line = page[i].strip()
            shape = re.sub(r"\d+", "#", line)
            if shape in heads:
                first += [line, ""] if shape not in kept else []
                kept.add(shape)
                dropped.add(i)
            elif (found := _page_number(line)) and int(found) - number in starts:
                dropped.add(i)
        result.append(first + [line for i, line in enumerate(page) if i not in dropped])
    return result


def _page_number(line: str) -> str:
    found = re.fullmatch(r"\W*(\d{1,5})\W*", line)
    return found.group(1) if found else ""


def _mend_page_borders(lines: list[list[str]]) -> None:
    for page, following in pairwise(lines):
        end = next((i for i in reversed(range(len(page))) if page[i].strip()), None)
        start = next((i for i, line in enumerate(following) if line.strip()), None)
        if end is None or start is None or not _broken(page[end], following[start].lstrip()):
            continue
        rest, _, remainder = following[start].lstrip().partition(" ")
        following[start] = remainder
        page[end + 1 :] = [rest]


def _broken(line: str, following: str) -> bool:
    """Does a word go on in the next line?"""
    return len(line) > 1 and line[-1] in _HYPHENS and line[-2].isalpha() and following[:1].isalpha() and bool(following)


def _paragraphs(page: list[str], words: Counter[str], hard: bool) -> str:
    lengths = sorted(len(line) for line in page if line.strip())
    full = 0.75 * lengths[int(0.9 * (len(lengths) - 1))] if lengths else 0.0
    parts: list[str] = []
    previous = ""
    for line in page:
        if not line.strip():
            if parts and parts[-1] != "\n\n":
                parts.append("\n\n")
            previous = ""
            continue
        if previous:
            stripped = line.lstrip()
            if _broken(previous, stripped):
                parts[-1], line = _mended(parts[-1], stripped, words, hard)
            else:
                separator = _separator(previous, stripped, full)
                parts.append(separator)
                line = line if separator.startswith("\n") else stripped
        parts.append(line)
        previous = line
    return "".join(parts).strip("\n")


def _mended(line: str, following: str, words: Counter[str], hard: bool) -> tuple[str, str]:
    """Both parts of a broken word, without the hyphen unless it belongs to the word."""
    head = re.search(r"[^\W\d_]+(?:-[^\W\d_]+)*.$", line)
    tail = _WORD.match(following)
    if line[-1] in _SOFT_HYPHENS or head is None or tail is None:
        return line[:-1], following
    first, second = head.group()[:-1].lower(), tail.group().lower()
    joined, compound = words[first + second], words[f"{first}-{second}"]
    # The document itself knows best how a word is written; failing that, what other hyphens in it are.
    belongs = compound > joined or (compound == joined and (hard or "-" in first or following[0].isupper()))
    return (line if belongs else line[:-1]), following


def _separator(line: str, following: str, full: float) -> str:
    bare = line.rstrip(_CLOSING)
    ended = bare[-1:] in _SENTENCE_END and bool(bare)
    short = len(line) < full
    if short and ended:
        return "\n\n"
    continues = following[0].islower() and (line[-1].isalpha() or line[-1] == ",")
    if _LIST_ITEM.match(following) or (short and not continues):
        return "\n"
    return "" if _UNSPACED.match(line[-1]) and _UNSPACED.match(following[0]) else " "
