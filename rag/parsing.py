"""File bytes to sections of text, one function per format; runs where it may be killed."""

from __future__ import annotations

import codecs
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path, PurePath

import lxml.etree
import lxml.html
from charset_normalizer import CharsetMatch, from_bytes
from inscriptis.html_engine import Inscriptis
from inscriptis.model.config import ParserConfig

from rag import pdf
from rag.errors import UnsupportedFile
from rag.settings import ReaderSettings
from rag.types import ErrorCode, Section

_MARKDOWN = {".md", ".markdown"}
_HTML = {".html", ".htm", ".xhtml"}
_JSON = {".json", ".ipynb"}
_PLAIN = frozenset(
    [
        ".txt",
        ".text",
        ".log",
        ".rst",
        ".tex",
        ".csv",
        ".tsv",
        ".jsonl",
        ".ndjson",
        ".yaml",
        ".yml",
        ".toml",
        ".ini",
        ".cfg",
        ".conf",
        ".xml",
        ".vtt",
        ".srt",
        ".css",
        ".sql",
        ".c",
        ".h",
        ".cpp",
        ".hpp",
        ".cs",
        ".go",
        ".java",
        ".js",
        ".jsx",
        ".ts",
        ".tsx",
        ".php",
        ".py",
        ".rb",
        ".rs",
        ".sh",
        ".swift",
        ".kt",
        ".scala",
        ".lua",
        ".r",
    ]
)

# What a file begins with tells what it is, whatever its name says.
_SIGNATURES = (
    (b"%PDF-", "a PDF"),
    (b"PK\x03\x04", "a ZIP archive or an office document"),
    (b"PK\x05\x06", "an empty ZIP archive"),
    (b"\x89PNG\r\n", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF87a", "a GIF image"),
    (b"GIF89a", "a GIF image"),
    (b"RIFF", "a RIFF sound, picture or film"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old office document"),
    (b"{\\rtf", "an RTF document"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"BZh", "a bzip2 archive"),
    (b"\xfd7zXZ", "an XZ archive"),
    (b"7z\xbc\xaf", "a 7-Zip archive"),
    (b"Rar!\x1a", "a RAR archive"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard archive"),
    (b"\x7fELF", "a program"),
    (b"MZ\x90\x00", "a program"),
    (b"SQLite format 3\x00", "a SQLite database"),
    (b"PAR1", "a Parquet file"),
    (b"OggS", "an Ogg sound or film"),
    (b"ID3\x03", "an MP3 sound"),
    (b"ID3\x04", "an MP3 sound"),
)
_MARKUP = re.compile(rb"\s*(?:<!doctype html|<html|<head|<body)", re.IGNORECASE)

_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_DECLARED = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w:.-]{2,40})", re.IGNORECASE)
_XML_DECLARED = re.compile(rb"\s*<\?xml[^>]{0,200}?encoding\s*=\s*[\"']([\w:.-]{2,40})", re.IGNORECASE)
_CONTROL = re.compile(r"[\x01-\x08\x0e-\x1a\x1c-\x1f\x7f-\x84\x86-\x9f]")  # tab, line ends, escape, NEL left out
_DISORDER = 0.2  # above this share of odd neighbours a guess is no text

_LATIN_ENCODINGS = ("cp1252", "cp1250", "cp1254", "cp1257", "cp1258")
# What other Latin alphabets look like when they are read as Windows-1252.
_NOT_WESTERN = re.compile(r"[ðýþÐÝÞ]|[^\W\d_][¡-©«-´¶-¹¼-¿×÷](?=[^\W\d_])|(?<=[^\W\d_])[º³¹¾¿£¥](?=\W)")
_LATIN_LEAD = 0.03  # how much likelier than the next the best of several Latin readings must be

_HTML_HEADINGS = {f"h{level}": ["heading"] for level in range(1, 7)}
_MARKDOWN_HEADING = re.compile(r" {0,3}#{1,6}(?:[ \t]+(.*))?$")
_MARKDOWN_CLOSING = re.compile(r"(?<![^ \t])#+$")
_MARKDOWN_RULE = re.compile(r" {0,3}(?:=+|-+)[ \t]*$")
_MARKDOWN_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_JSON_DEPTH = 64
_HTML_RECURSION = 5000  # the parser stops at a depth of 2,048


def parse(source: Path | bytes, filename: str, limits: ReaderSettings) -> list[Section]:
    """The text of a document, in order; at least one section has a character that is not white space.

    A section that ends with a line end carries its own border; the text of a plain file is kept to the letter, but for
    a byte-order mark and NUL.

    Raises:
        UnsupportedFile: of a kind that is not read (`unsupported_file`), or one that cannot be (`invalid_file`).
    """
    extension = PurePath(filename).suffix.lower()
    reader = _reader_of(extension)
    if reader is None:
        named = f"Files that end in '{extension}'" if extension else "Files without an extension"
        raise UnsupportedFile(
            f"{named} are not supported; .txt, .md, .html, .pdf and program text are.", ErrorCode.UNSUPPORTED_FILE
        )
    data = source if isinstance(source, bytes) else source.read_bytes()
    if not data:
        raise UnsupportedFile("The file is empty (0 bytes).")
    _check_content(data, extension)
    sections = reader(data, limits)
    size = sum(len(section.text) for section in sections)
    if size > limits.max_characters:
        raise UnsupportedFile(f"The file holds {size} characters of text; at most {limits.max_characters} are read.")
    if not any(section.text.strip() for section in sections):
        raise UnsupportedFile("The file has no text in it, only white space.")
    return sections


def _reader_of(extension: str) -> Callable[[bytes, ReaderSettings], list[Section]] | None:
    if extension == ".pdf":
        return parse_pdf
    if extension in _MARKDOWN:
        return parse_markdown
    if extension in _HTML:
        return parse_html
    if extension in _JSON:
        return parse_json
    return parse_text if extension in _PLAIN else None


def _check_content(data: bytes, extension: str) -> None:
    """Is it what its name says?"""
    kind = next((kind for signature, kind in _SIGNATURES if data.startswith(signature)), None)
    if extension == ".pdf":
        if b"%PDF-" in data[:1024]:
            return
        if kind is None and _MARKUP.match(data[:1024]):
            kind = "an HTML page"
        if kind is None:
            raise UnsupportedFile("The content is not a PDF, though the name ends in '.pdf'.")
    if kind is not None:
        raise UnsupportedFile(
            f"The content is {kind}, though the name ends in '{extension}'.", ErrorCode.UNSUPPORTED_FILE
        )


# --- formats --------------------------------------------------------------------------------------------------------


def parse_text(data: bytes, limits: ReaderSettings) -> list[Section]:
    """Plain text: one section."""
    return [Section(decode(data))]


def parse_json(data: bytes, limits: ReaderSettings) -> list[Section]:
    """JSON, kept as it is written, if it is JSON and not nested too deep."""
    text = decode(data)
    too_deep = f"The JSON is nested more than {_JSON_DEPTH} levels deep."
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise UnsupportedFile(too_deep) from error
    except ValueError as error:
        raise UnsupportedFile(f"The content is not JSON ({error}).") from error
    level = [value]
    for _ in range(_JSON_DEPTH + 1):
        level = [
            child
            for node in level
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
        ]
    if level:
        raise UnsupportedFile(too_deep)
    return [Section(text)]


def parse_markdown(data: bytes, limits: ReaderSettings) -> list[Section]:
    """Markdown, kept as it is written: a section from each heading to the next."""
    lines = decode(data).splitlines(keepends=True)
    sections: list[Section] = []
    heading: str | None = None
    begin, fence = 0, ""
    for number, line in enumerate(lines):
        fence = _fence_after(fence, line)
        found = None if fence else _heading_at(lines, number)
        if found is None:
            continue
        if number > begin:
            sections.append(Section("".join(lines[begin:number]), heading=heading))
        heading, begin = found or heading, number
    sections.append(Section("".join(lines[begin:]), heading=heading))
    return sections


def _fence_after(fence: str, line: str) -> str:
    """The fence that is open after this line, if one was open before."""
    found = _MARKDOWN_FENCE.match(line)
    if found is None:
        return fence
    if not fence:
        return found.group(1)
    closes = found.group(1).startswith(fence) and not line[found.end() :].strip()
    return "" if closes else fence


def _heading_at(lines: list[str], number: int) -> str | None:
    line = lines[number].rstrip("\r\n")
    found = _MARKDOWN_HEADING.match(line)
    if found:
        return _MARKDOWN_CLOSING.sub("", (found.group(1) or "").strip()).strip()
    below = lines[number + 1].rstrip("\r\n") if number + 1 < len(lines) else ""
    alone = number == 0 or not lines[number - 1].strip()
    if (
        alone
        and line.strip()
        and not line.startswith(("    ", "\t", "-", "*", "|", ">"))
        and _MARKDOWN_RULE.match(below)
    ):
        return line.strip()
    return None


def parse_html(data: bytes, limits: ReaderSettings) -> list[Section]:
    """The visible text of a page and its title: a section from each heading to the next."""
    text = re.sub(r"^\s*<\?xml[^>]*\?>", "", decode(data, markup=True))
    parser = lxml.html.HTMLParser(huge_tree=True, remove_comments=True, remove_pis=True)
    try:
        tree = lxml.html.document_fromstring(text, parser=parser)
    except lxml.etree.ParserError as error:
        raise UnsupportedFile("The page has no text in it.") from error
    if any("Excessive depth" in entry.message for entry in parser.error_log):
        raise UnsupportedFile("The page is nested too deep to be read.")
    title = " ".join((tree.findtext(".//title") or "").split())
    shown, headings = _render(tree)
    sections = [] if not title or title in shown else [Section(title, heading=title)]
    heading = title or None
    begin = 0
    for start, end in headings:
        if shown[begin:start].strip():
            sections.append(Section(shown[begin:start].strip("\n"), heading=heading))
            begin = start
        heading = " ".join(shown[start:end].split()) or heading
    return [*sections, Section(shown[begin:].strip("\n"), heading=heading)]


def _render(tree: lxml.html.HtmlElement) -> tuple[str, list[tuple[int, int]]]:
    """The text as a browser would lay it out, and where its headings lie."""
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(max(usual, _HTML_RECURSION))
    try:
        page = Inscriptis(tree, ParserConfig(annotation_rules=_HTML_HEADINGS))
        text = page.get_text()
    finally:
        sys.setrecursionlimit(usual)
    text = text.replace("\xad", "")
    return text, sorted((mark.start, mark.end) for mark in page.get_annotations())


def parse_pdf(data: bytes, limits: ReaderSettings) -> list[Section]:
    """One section for each page that has text."""
    texts = pdf.pages(data, limits)
    return [Section(text, page=number) for number, text in enumerate(texts, start=1) if text.strip()]


# --- encodings ------------------------------------------------------------------------------------------------------


def decode(data: bytes, *, markup: bool = False) -> str:
    """Bytes to text without byte-order mark and NUL. `markup`: what a page says of its own encoding counts.

    Raises:
        UnsupportedFile: the bytes are no text, or it is not certain in which encoding.
    """
    text = _decoded(data, markup)
    sample = text[:1_000_000]
    if len(_CONTROL.findall(sample)) > 0.02 * len(sample) or sample.count("\0") > 0.3 * len(sample):
        raise UnsupportedFile("The content is binary, not text.", ErrorCode.UNSUPPORTED_FILE)
    return text.replace("\0", "").removeprefix("\ufeff")


def _decoded(data: bytes, markup: bool) -> str:
    for mark, encoding in _BYTE_ORDER_MARKS:
        if data.startswith(mark):
            return _strictly(data[len(mark) :], encoding)
    declared = _declared(data) if markup else None
    if declared is not None:
        return declared
    wide = _wide_encoding(data)
    if wide:
        return _strictly(data, wide)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        return _guessed(data, markup, error)


def _strictly(data: bytes, encoding: str) -> str:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise UnsupportedFile(
            f"The text is not valid {encoding.upper()}: {error.reason} at byte {error.start}."
        ) from error


def _declared(data: bytes) -> str | None:
    """The text in the encoding that a page declares, if it is right."""
    found = _XML_DECLARED.match(data[:400]) or _DECLARED.search(data[:4096])
    if found is None:
        return None
    name = found.group(1).decode("ascii", "replace").lower()
    # Browsers read both as Windows-1252, and so do the pages' authors.
    encoding = "cp1252" if name in ("iso-8859-1", "latin1", "us-ascii") else name
    try:
        return data.decode(encoding)
    except (LookupError, UnicodeDecodeError):
        return None


def _wide_encoding(data: bytes) -> str | None:
    """UTF-16 without a mark: every other byte of mostly Latin text is zero."""
    sample = data[: 4096 * 2]
    even, odd = sample[0::2].count(0), sample[1::2].count(0)
    if len(data) % 2 == 0 and max(even, odd) > 0.7 * len(sample) / 2 and min(even, odd) < 0.05 * len(sample):
        return "utf-16-be" if even > odd else "utf-16-le"
    return None


def _guessed(data: bytes, markup: bool, error: UnicodeDecodeError) -> str:
    unknown = UnsupportedFile("The encoding of the text cannot be told for certain; save it as UTF-8.")
    if b"\0" in data[:65536]:
        raise UnsupportedFile("The content is binary, not text.", ErrorCode.UNSUPPORTED_FILE)
    high = sum(byte > 0x7F for byte in data)
    valid = sum(len(char.encode()) for char in data.decode("utf-8", "ignore") if ord(char) > 0x7F)
    if valid > 0.8 * high:
        raise UnsupportedFile(f"The text is damaged UTF-8: {error.reason} at byte {error.start}.") from error
    best = from_bytes(data).best()
    if best is None or best.chaos > _DISORDER:
        raise unknown from error
    text = _latin(data) if _is_latin(str(best)) else _whole(data, best)
    if text is None or _CONTROL.search(text):
        raise unknown from error
    return text


def _is_latin(text: str) -> bool:
    strange = [char for char in text[:100_000] if ord(char) > 0x7F and char.isalpha()]
    return sum(char < "\u0250" or "\u1e00" <= char < "\u1f00" for char in strange) * 2 >= len(strange)


def _whole(data: bytes, guess: CharsetMatch) -> str | None:
    try:
        return data.decode(guess.encoding)
    except UnicodeDecodeError:
        return None


def _latin(data: bytes) -> str | None:
    """Latin alphabets share their bytes: Windows-1252 unless its reading is odd, else what is clearly likeliest."""
    western = data.decode("cp1252", "ignore")
    if len(western) == len(data) and not _NOT_WESTERN.search(western):
        return western
    guesses = sorted(
        from_bytes(data, cp_isolation=list(_LATIN_ENCODINGS)), key=lambda guess: guess.chaos - guess.coherence
    )
    if not guesses:
        return None
    lead = [guess.coherence - guess.chaos for guess in guesses]
    if len(guesses) > 1 and lead[0] - lead[1] < _LATIN_LEAD:
        return None
    return _whole(data, guesses[0])
