"""Documents to chunks: by tokens, on borders of paragraphs and sentences where they fit, with the place kept.

A document's sections are joined to one text, which is tokenized once to see how far a chunk reaches. It is cut at the
best border in the second half of what is new in it. The next chunk begins `overlap` tokens before the cut, again at a
border. Chunks follow each other without a gap, so that nothing is lost but white space.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rag.models.base import TextTokenizer
from rag.types import Chunk, ChunkingStrategy, Int64, Section

PARAGRAPH = "\n\n"

# From the strongest border to the weakest; each match ends where a chunk may begin.
_BORDERS = (
    re.compile(r"\n[^\S\n]*\n\s*"),
    re.compile(r"(?<=[.!?…।۔؟])[\"'”’)\]]*\s+|(?<=[。！？])[」』”’）]*\s*(?![。！？」』”’）])"),
    re.compile(r"\n\s*"),
    re.compile(r"\s+"),
)
_BLANKS = re.compile(r"\s*")
_SENTENCE_END = re.compile(r"[.!?…:;。！？।۔؟][\"'”’)\]」』）]*\s*$")

_VIRAMA = 9  # the combining class of marks that bind the letter after them
_STRETCH = 50_000  # characters that are tokenized at once: an encoding takes a hundred times their memory
_WIDE = 64  # characters that count as a token at least: an unknown word, or a gap, may be of any length
_LONGEST_CHARACTER = 64  # code points with all marks and joiners; what is longer is no character of any script


def split(sections: Sequence[Section], strategy: ChunkingStrategy, tokenizer: TextTokenizer) -> list[Chunk]:
    """Chunks in the order of the text, none without a visible character.

    A chunk holds at most `max_chunk_size_tokens`, and never more than the model's window leaves, counted by the
    tokenizer on the chunk's own text. Where the window is the smaller of the two, the overlap shrinks in proportion.
    Without the overlaps the chunks give back the text, but for white space at their ends.
    """
    document = _Document.of(sections)
    starts = _token_starts(document.text, tokenizer)
    if not len(starts):
        return []
    size, overlap = _sizes(strategy, tokenizer)
    cutter = _Cutter(document.text, starts, size, overlap, tokenizer)
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


# --- tokens ---------------------------------------------------------------------------------------------------------


def _token_starts(text: str, tokenizer: TextTokenizer) -> Int64:
    """Where the tokens begin, white space before them left out: int64 (n,), ascending."""
    starts: list[int] = []
    begin = 0
    while begin < len(text):
        end = _stretch_end(text, begin)
        starts += [_skip_blanks(text, begin + start) for start in tokenizer.spans(text[begin:end])[:, 0].tolist()]
        begin = end
    return _spread(np.maximum.accumulate(np.array(starts, np.int64)), len(text)) if starts else np.empty(0, np.int64)


def _stretch_end(text: str, begin: int) -> int:
    end = begin + _STRETCH
    if end >= len(text):
        return len(text)
    blank = max(text.rfind(" ", begin, end), text.rfind("\n", begin, end))
    return blank if blank > begin else end


def _spread(starts: Int64, length: int) -> Int64:
    """Further starts where one token, or what no token stands for, fills many characters."""
    bounds = np.concatenate([[0], starts, [length]])
    wide = np.flatnonzero(np.diff(bounds) > _WIDE)
    between = [np.arange(bounds[i] + _WIDE, bounds[i + 1], _WIDE) for i in wide.tolist()]
    return np.sort(np.concatenate([starts, *between]))


def _skip_blanks(text: str, position: int) -> int:
    found = _BLANKS.match(text, position)
    return found.end() if found else position


# --- cuts -----------------------------------------------------------------------------------------------------------


class _Cutter:
    """Where a text is cut. Positions are in characters."""

    def __init__(self, text: str, starts: Int64, size: int, overlap: int, tokenizer: TextTokenizer) -> None:
        self._text = text
        self._starts = starts
        self._size = size
        self._overlap = overlap
        self._tokenizer = tokenizer

    def pieces(self) -> Iterator[tuple[int, int, int]]:
        """Start, end and token count of each chunk; starts and ends ascend."""
        text = self._text
        begin = done = 0  # everything before `done` is in a chunk
        while (begin := _skip_blanks(text, begin)) < len(text):
            end, count = self._fit(begin, done)
            if end <= done:  # the overlap leaves no room for anything new
                begin = done
                continue
            if text[max(begin, done) : end].strip():
                yield begin, begin + len(text[begin:end].rstrip()), count
            if end == len(text):
                return
            done = end
            begin = self._back(begin, end)

    def _fit(self, begin: int, done: int) -> tuple[int, int]:
        """The end of a chunk that begins here, and how many tokens it has by itself. A substring may be tokenized
        otherwise than within its text, so a chunk that came out too long is tried shorter; in the end, a character
        that is too long by itself is parted."""
        allowed = self._size
        end = begin
        while True:
            end = self._cut(begin, done, allowed) if allowed else self._halved(begin, end)
            count = self._tokenizer.count(self._text[begin:end].rstrip())
            if count <= self._size or end == begin + 1:
                return end, count
            allowed = max(0, allowed - max(count - self._size, allowed // 8, 1))

    def _cut(self, begin: int, done: int, allowed: int) -> int:
        """The best end of a chunk of about that many tokens."""
        after = self._index(begin) + allowed
        if after >= len(self._starts):
            return len(self._text)
        latest = max(int(self._starts[after]), begin + 1)
        middle = int(self._starts[min(after, (self._index(max(begin, done)) + after + 1) // 2)])
        border = self._last_border(max(middle, begin + 1, done + 1), _skip_blanks(self._text, latest))
        return border or self._whole_before(begin, latest) or self._whole_after(latest)

    def _halved(self, begin: int, end: int) -> int:
        half = begin + max(1, (end - begin) // 2)
        return self._whole_before(begin, half) or half

    def _back(self, begin: int, end: int) -> int:
        """Where the next chunk begins: `overlap` tokens before the cut, moved forward to a border that is near."""
        if not self._overlap:
            return end
        following = self._index(end)
        low = min(end, max(begin + 1, int(self._starts[max(0, following - self._overlap)])))
        middle = min(end, max(low, int(self._starts[max(0, following - (self._overlap + 1) // 2)])))
        border = self._first_border(low, middle)
        if border:
            return border
        while low < end and not _separable(self._text, low):
            low += 1
        return low

    def _index(self, position: int) -> int:
        """How many tokens begin before this position."""
        return int(np.searchsorted(self._starts, position))

    def _last_border(self, low: int, high: int) -> int | None:
        """The last place of the strongest kind of border there is, both ends of the range included."""
        for ends in self._borders(low, high):
            for end in reversed(list(ends)):
                if _separable(self._text, end):
                    return end
        return None

    def _first_border(self, low: int, high: int) -> int | None:
        for ends in self._borders(low, high):
            for end in ends:
                if _separable(self._text, end):
                    return end
        return None

    def _borders(self, low: int, high: int) -> Iterator[Iterator[int]]:
        """For each kind of border, the strongest first, its places from `low` to `high` in their order."""
        begin = low
        while begin and self._text[begin - 1].isspace():  # a border that ends at `low` counts
            begin -= 1
        for border in _BORDERS:
            yield (found.end() for found in border.finditer(self._text, begin, high) if found.end() >= low)

    def _whole_before(self, begin: int, position: int) -> int | None:
        """The last place after `begin` and up to `position` that parts no character from its marks."""
        while position > begin and not _separable(self._text, position):
            position -= 1
        return position if position > begin else None

    def _whole_after(self, position: int) -> int:
        """The next such place, or `position` where there is none near."""
        near = range(position, position + _LONGEST_CHARACTER)
        return next((place for place in near if _separable(self._text, place)), position)


def _separable(text: str, position: int) -> bool:
    """Whether a cut here parts no character from a mark or joiner that belongs to it."""
    if not 0 < position < len(text):
        return True
    before, after = text[position - 1], text[position]
    if (
        before == "\u200d" or unicodedata.combining(before) == _VIRAMA or after in "\u200c\u200d\u0e33\u0eb3"
    ):  # the last two: Thai and Lao AM
        return False
    # Skin tones and the letters of flags of regions are marks by their use.
    if "\U0001f3fb" <= after <= "\U0001f3ff" or "\U000e0020" <= after <= "\U000e007f":
        return False
    return unicodedata.category(after) not in ("Mn", "Mc", "Me")
