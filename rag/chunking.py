"""Documents to chunks: by tokens, on borders of paragraphs and sentences where they fit, with the place kept.

A document's sections are joined to one text, which is tokenized once. Cuts fall between tokens: at the best border in
the second half of what a chunk may hold. The next chunk begins `overlap` tokens before the cut, again at a border.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rag.models.base import TextTokenizer
from rag.types import Chunk, ChunkingStrategy, Int32, Section

PARAGRAPH = "\n\n"

# From the strongest border to the weakest; each match ends where a chunk may begin.
_BORDERS = (
    re.compile(r"\n[^\S\n]*\n\s*"),
    re.compile(r"(?:[.!?…]+[\"'”’)\]]*|[।۔؟])\s+|[。！？]+[」』”’）]*\s*|\n\s*"),
    re.compile(r"\s+"),
)
_JOINERS = frozenset("\u200c\u200d\ufe0e\ufe0f")
_SENTENCE_END = re.compile(r"[.!?…:;。！？।۔؟][\"'”’)\]」』）]*\s*$")


def split(sections: Sequence[Section], strategy: ChunkingStrategy, tokenizer: TextTokenizer) -> list[Chunk]:
    """Chunks in the order of the text, none without a visible character.

    A chunk holds at most `max_chunk_size_tokens`, and never more than the model's window leaves, counted by the
    tokenizer on the chunk's own text. Where the window is the smaller of the two, the overlap shrinks in proportion.
    Without the overlaps the chunks give back the text, but for white space at their ends.
    """
    document = _Document.of(sections)
    spans = tokenizer.spans(document.text)
    if not len(spans):
        return []
    size, overlap = _sizes(strategy, tokenizer)
    cutter = _Cutter(document.text, spans, size, overlap, tokenizer)
    return [_chunk(ordinal, document, start, end, count) for ordinal, (start, end, count) in enumerate(cutter.pieces())]


def _sizes(strategy: ChunkingStrategy, tokenizer: TextTokenizer) -> tuple[int, int]:
    room = max(1, tokenizer.max_tokens - tokenizer.special_tokens)
    size = min(strategy.max_chunk_size_tokens, room)
    overlap = strategy.chunk_overlap_tokens * size // strategy.max_chunk_size_tokens
    return size, min(overlap, size // 2)


@dataclass(frozen=True, slots=True)
class _Document:
    """The joined text, and where each section begins in it."""

    text: str
    starts: tuple[int, ...]
    sections: tuple[Section, ...]

    @staticmethod
    def of(sections: Sequence[Section]) -> _Document:
        parts: list[str] = []
        starts: list[int] = []
        length = 0
        for section in sections:
            if parts:
                glue = _glue(parts[-1], section)
                parts.append(glue)
                length += len(glue)
            starts.append(length)
            parts.append(section.text)
            length += len(section.text)
        return _Document("".join(parts), tuple(starts), tuple(sections))

    def section_at(self, position: int) -> Section:
        return self.sections[max(0, bisect_right(self.starts, position) - 1)]


def _glue(before: str, section: Section) -> str:
    """What stands between two sections: nothing where the first brings its own border, a line end where a sentence
    goes on across a page, else a paragraph's border."""
    if before.endswith("\n"):
        return ""
    goes_on = section.page is not None and before.strip() and not _SENTENCE_END.search(before)
    return "\n" if goes_on else PARAGRAPH


def _chunk(ordinal: int, document: _Document, start: int, end: int, tokens: int) -> Chunk:
    first, last = document.section_at(start), document.section_at(end - 1)
    return Chunk(
        ordinal, document.text[start:end], tokens, start, end, page=first.page, page_last=last.page,
        heading=first.heading,
    )  # fmt: skip


class _Cutter:
    """Where a text is cut. Positions are in characters, tokens by their index in `spans`."""

    def __init__(self, text: str, spans: Int32, size: int, overlap: int, tokenizer: TextTokenizer) -> None:
        self._text = text
        self._starts: list[int] = spans[:, 0].tolist()
        self._ends: list[int] = spans[:, 1].tolist()
        self._size = size
        self._overlap = overlap
        self._tokenizer = tokenizer
        self._borders = [_border_positions(text, border) for border in _BORDERS]

    def pieces(self) -> Iterator[tuple[int, int, int]]:
        """Start, end and token count of each chunk."""
        first = 0
        done = 0  # everything before this position is in a chunk
        while first < len(self._starts):
            begin = max(self._starts[first], 0)
            end, count = self._fit(begin, first)
            start, stop = self._trimmed(begin, end)
            if stop > max(start, done):
                yield start, stop, count
                done = stop
            following = bisect_right(self._ends, end)  # a token across the cut belongs to both sides
            if following >= len(self._starts):
                return
            first = max(first + 1, self._back(first, following))

    def _fit(self, begin: int, first: int) -> tuple[int, int]:
        """The end of a chunk that begins here, at the best border, and how many tokens it has by itself: a substring
        may be tokenized otherwise than within its text, so a chunk that came out too long is tried shorter."""
        allowed = self._size
        while True:
            end = self._cut(begin, first, allowed)
            count = self._tokenizer.count(self._text[begin:end].strip())
            if count <= self._size or allowed == 1:
                return end, count
            allowed = max(1, allowed - max(1, count - self._size))

    def _cut(self, begin: int, first: int, allowed: int) -> int:
        after = first + allowed
        if after >= len(self._starts):
            return len(self._text)
        latest = self._starts[after]
        earliest = self._starts[first + (allowed + 1) // 2]
        for positions in self._borders:
            place = bisect_right(positions, latest) - 1
            if place >= 0 and positions[place] > max(begin, earliest - 1):
                return positions[place]
        return self._whole_character(begin, latest, after)

    def _whole_character(self, begin: int, latest: int, after: int) -> int:
        """The last position up to `latest` that parts no character from its marks; else `latest`, to move on."""
        position = latest
        while position > begin and not _separable(self._text, position):
            position -= 1
        if position > begin:
            return position
        return max(latest, self._ends[after - 1], begin + 1)

    def _back(self, first: int, following: int) -> int:
        """The token at which the next chunk begins: `overlap` before the cut, moved forward to a border."""
        if not self._overlap:
            return following
        earliest = max(first + 1, following - self._overlap)
        low, high = self._starts[earliest], self._starts[following]
        middle = self._starts[earliest + (following - earliest) // 2]
        for positions, limit in zip(self._borders, (middle, middle, high), strict=True):
            place = bisect_left(positions, low)
            if place < len(positions) and positions[place] <= limit:
                return bisect_left(self._starts, positions[place])
        return earliest if _separable(self._text, low) else following

    def _trimmed(self, start: int, end: int) -> tuple[int, int]:
        piece = self._text[start:end]
        return start + len(piece) - len(piece.lstrip()), end - len(piece) + len(piece.rstrip())


def _border_positions(text: str, border: re.Pattern[str]) -> list[int]:
    return [match.end() for match in border.finditer(text)]


def _separable(text: str, position: int) -> bool:
    """Whether a cut here parts no character from a mark or joiner that belongs to it."""
    if not 0 < position < len(text):
        return True
    after = text[position]
    if after in _JOINERS or text[position - 1] == "\u200d" or 0x1F3FB <= ord(after) <= 0x1F3FF:
        return False
    return unicodedata.combining(after) == 0 and unicodedata.category(after) not in ("Mn", "Mc", "Me")
