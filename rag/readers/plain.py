"""Text that is kept as it is written: plain text, program text, tables in text, JSON, Markdown."""

from __future__ import annotations

import re

from rag.errors import UnsupportedFile
from rag.readers.encodings import decode
from rag.readers.json_check import JsonCheck
from rag.settings import ReaderSettings
from rag.types import Section

_MARKDOWN_HEADING = re.compile(r" {0,3}#{1,6}(?:[ \t]+(.*))?$")
_MARKDOWN_CLOSING = re.compile(r"(?<![^ \t])#+$")
_MARKDOWN_RULE = re.compile(r" {0,3}(?:=+|-+)[ \t]*$")
_MARKDOWN_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


def parse_text(data: bytes, limits: ReaderSettings) -> list[Section]:
    """Plain text: one section. Tables in text keep their rows and quotes as they are."""
    return [Section(decode(data))]


def parse_xml(data: bytes, limits: ReaderSettings) -> list[Section]:
    """XML, kept as it is written, in the encoding that it declares."""
    return [Section(decode(data, markup=True))]


def parse_json(data: bytes, limits: ReaderSettings) -> list[Section]:
    """JSON, kept as it is written, if it is JSON and not nested too deep."""
    text = decode(data)
    check = JsonCheck()
    try:
        check.feed(text.encode())
        check.close()
    except ValueError as error:
        raise UnsupportedFile(str(error)) from error
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
