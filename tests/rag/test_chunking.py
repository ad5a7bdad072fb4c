from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
import regex
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rag.chunking import split
from rag.errors import ModelUnavailable
from rag.models.base import TextTokenizer
from rag.models.registry import load_tokenizer
from rag.settings import ModelSettings
from rag.types import Chunk, ChunkingStrategy, Int32, Section

# A letter or sign with its marks, and whatever a joiner or a virama binds to it.
CHARACTER = regex.compile(
    r"[^\s\x1c-\x1f](?:[\p{M}\u200c\u200d\u0e33\u0eb3\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]"
    r"|(?<=[\u200d\p{Canonical_Combining_Class=Virama}])[^\s\x1c-\x1f])*"
)


class WordTokens:
    """A word is a token, and so is every other visible character. Counts the work it is given."""

    def __init__(self, max_tokens: int = 10_000, special_tokens: int = 2) -> None:
        self.max_tokens = max_tokens
        self.special_tokens = special_tokens
        self.characters = 0

    def count(self, text: str) -> int:
        return len(self.spans(text))

    def spans(self, text: str) -> Int32:
        self.characters += len(text)
        return np.array([found.span() for found in re.finditer(r"\w+|\S", text)], np.int32).reshape(-1, 2)


class EveryFour(WordTokens):
    """Four characters are a token, whatever they are."""

    def spans(self, text: str) -> Int32:
        self.characters += len(text)
        starts = np.arange(0, len(text), 4, dtype=np.int32)
        return np.stack([starts, np.minimum(starts + 4, len(text))], axis=1)


@pytest.fixture(scope="module", params=["bge-small-en-v1.5", "multilingual-e5-small"])
def tokenizer(request) -> TextTokenizer:
    try:
        return load_tokenizer(ModelSettings(model=request.param))
    except ModelUnavailable as missing:
        pytest.skip(missing.message)


def cut(text: str, size: int, overlap: int = 0, tokens: TextTokenizer | None = None) -> list[Chunk]:
    return split([Section(text)], ChunkingStrategy(size, overlap), tokens or WordTokens())


def texts(chunks: Sequence[Chunk]) -> list[str]:
    return [chunk.text for chunk in chunks]


def check(text: str, chunks: Sequence[Chunk], cap: int, tokens: TextTokenizer) -> None:
    """What holds for the chunks of any text."""
    assert [chunk.ordinal for chunk in chunks] == list(range(len(chunks)))
    covered = 0
    for chunk in chunks:
        assert chunk.text == text[chunk.start : chunk.end] == chunk.text.strip() != ""
        assert chunk.token_count == tokens.count(chunk.text)
        assert chunk.token_count <= cap or len(chunk.text) == 1
        assert not text[covered : chunk.start].strip()
        covered = chunk.end
    assert not text[covered:].strip() or (not chunks and not tokens.count(text))
    for one, other in pairwise(chunks):
        assert one.start < other.start
        assert one.end < other.end
    borders = {place for chunk in chunks for place in (chunk.start, chunk.end)}
    for found in CHARACTER.finditer(text):
        inside = borders & set(range(found.start() + 1, found.end()))
        assert not inside or tokens.count(found.group()) > cap, found.group()


FAMILY = "\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466"
FRAGMENTS = st.sampled_from(
    [
        *("rook", "The", "lighthouse", "a", "I", "naïve", "e\u0301", "q\u0323\u0307", "x" * 90, "y" * 300),
        *(" ", " ", " ", "\n", "\n\n", "\r\n", "\t", "\u3000", "\u2028", "\x1c", "  \n \n"),
        *(".", "! ", "? ", '." ', "...", "。", "！」", "…", ",", ":", "<|endoftext|>", "[CLS]", "</s>"),
        *("灯台", "は岬", "北京", "สวัสดี", "ครับ", "น้ำ", "हिन्दी", "العربية", "مَدْرَسَة", "한국어", "\ufdfa"),
        *(FAMILY, "\U0001f44b\U0001f3fd", "❤\ufe0f", "\U0001f3f4\U000e0067\U000e0062\U000e007f"),
        *("\u200b", "\u200d", "\u00ad", "\ufeff", "\x01", "\u0301", "\u3099", "\ufffd"),
    ]
)
TEXTS = st.one_of(
    st.text(max_size=300),
    st.lists(FRAGMENTS, max_size=120).map("".join),
    st.tuples(st.lists(FRAGMENTS, min_size=1, max_size=8).map("".join), st.integers(1, 150)).map(lambda a: a[0] * a[1]),
)


@settings(max_examples=200)
@given(TEXTS, st.integers(1, 40), st.integers(0, 20))
@example("。\u3099" * 9, 1, 0)
@example("a" + "\u0301" * 500, 8, 4)
@example("x" * 5000, 8, 4)
@example("\ufdfa" * 50, 3, 1)
def test_any_text_is_cut_within_the_cap_without_loss_and_always_forward(text, size, overlap):
    tokens = WordTokens()
    check(text, cut(text, size, min(overlap, size // 2), tokens), size, tokens)


@settings(max_examples=50)
@given(TEXTS, st.sampled_from([(100, 50), (4096, 2048), (100, 0), (20, 10)]))
@example(FAMILY * 90, (20, 10))
@example("ก" * 3000, (100, 50))
@example("\u0301" * 700, (100, 50))
@example("\ufdfa" * 300, (100, 50))
def test_real_tokenizers_find_every_chunk_within_the_cap(tokenizer, text, sizes):
    cap = min(sizes[0], tokenizer.max_tokens - tokenizer.special_tokens)
    check(text, cut(text, *sizes, tokenizer), cap, tokenizer)


@settings(max_examples=100)
@given(st.lists(st.tuples(TEXTS, st.integers(1, 9), st.sampled_from(["one", "two", None])), max_size=6))
def test_sections_are_joined_without_loss_and_each_chunk_knows_where_it_stands(parts):
    sections = [Section(text, page=page, heading=heading) for page, (text, _, heading) in enumerate(parts, start=1)]
    chunks = split(sections, ChunkingStrategy(12, 0), WordTokens())
    assert "".join("".join(texts(chunks)).split()) == "".join("".join(part[0] for part in parts).split())
    for chunk in chunks:
        first, last = sections[chunk.page - 1], sections[chunk.page_last - 1]
        assert chunk.page <= chunk.page_last
        assert chunk.heading == first.heading
        assert chunk.text[0] in first.text
        assert chunk.text[-1] in last.text
        if chunk.page == chunk.page_last:
            assert chunk.text in first.text


@pytest.mark.parametrize(("size", "overlap"), [(100, 50), (4096, 2048), (100, 0), (800, 400)])
def test_prose_overlaps_by_about_what_was_asked(size, overlap):
    tokens = WordTokens()
    text = " ".join(f"The keeper of lamp {number} writes a line, rests and then goes on." for number in range(1500))
    chunks = cut(text, size, overlap, tokens)
    check(text, chunks, size, tokens)
    for one, other in pairwise(chunks):
        shared = tokens.count(text[other.start : one.end])
        assert overlap / 2 <= shared <= overlap
    assert all(chunk.token_count >= (size + overlap) / 2 - 1 for chunk in chunks[:-1])


def test_a_window_that_is_smaller_than_the_strategy_shrinks_size_and_overlap():
    tokens = WordTokens(max_tokens=102)
    text = " ".join(f"w{number}" for number in range(1000))
    chunks = cut(text, 800, 400, tokens)
    assert {chunk.token_count for chunk in chunks[:-1]} == {100}
    assert {tokens.count(text[other.start : one.end]) for one, other in pairwise(chunks)} == {50}


def test_a_text_that_fits_is_one_chunk_without_white_space_around_it():
    (chunk,) = cut(" \n\n Two words.  And\n\nfour more here. \n", 100, 50)
    assert chunk == Chunk(0, "Two words.  And\n\nfour more here.", 8, 4, 36)


@pytest.mark.parametrize("text", ["", " \n\t ", "\u3000\u2028"])
def test_white_space_gives_no_chunk(text):
    assert cut(text, 100, 50) == []
    assert split([], ChunkingStrategy(), WordTokens()) == []


@pytest.mark.parametrize(
    ("text", "size", "expected"),
    [
        (
            "One two three four.\n\nFive six. Seven eight nine ten.",
            10,
            ["One two three four.", "Five six. Seven eight nine ten."],
        ),
        (
            "One two three. Four five\nsix seven eight nine ten.",
            10,
            ["One two three. Four five", "six seven eight nine ten."],
        ),
        ('He said "go." Then they all went away at once.', 8, ['He said "go."', "Then they all went away at once."]),
        ("alpha beta gamma\ndelta epsilon zeta eta theta", 6, ["alpha beta gamma", "delta epsilon zeta eta theta"]),
        ("गंगा नदी। यमुना नदी है यहाँ", 14, ["गंगा नदी।", "यमुना नदी है यहाँ"]),
    ],
)
def test_paragraphs_are_preferred_to_sentences_and_these_to_lines_and_words(text, size, expected):
    assert texts(cut(text, size)) == expected


def test_a_sentence_is_not_left_for_a_line_that_ends_later():
    text = "One two three four five. Six\nseven eight nine ten eleven twelve."
    assert texts(cut(text, 8))[0] == "One two three four five."


def test_chinese_is_cut_after_a_full_stop_and_its_closing_quote(tokenizer):
    text = "他说：「灯塔在岬角的尽头。」渔船在黎明前出海！" * 12
    chunks = cut(text, 100, 0, tokenizer)
    assert len(chunks) > 2
    assert all(chunk.text.endswith(("」", "！")) for chunk in chunks)
    assert all(chunk.text[0] in "他渔" for chunk in chunks)


def test_thai_without_blanks_never_parts_a_letter_from_its_vowel():
    text = "น้ำท่วมที่บ้านเกิดเมืองนอนของผู้ใหญ่" * 60

    class Letters(WordTokens):
        def spans(self, text: str) -> Int32:
            return np.array([(place, place + 1) for place in range(len(text))], np.int32).reshape(-1, 2)

    chunks = cut(text, 100, 50, Letters())
    check(text, chunks, 100, Letters())
    assert all(chunk.token_count > 90 for chunk in chunks[:-1])


def test_a_word_without_end_is_parted_although_the_tokenizer_does_not_know_it(tokenizer):
    chunks = cut("QUJD" * 40_000, 800, 400, tokenizer)
    assert max(len(chunk.text) for chunk in chunks) <= 64 * 800
    check("QUJD" * 40_000, chunks, tokenizer.max_tokens - tokenizer.special_tokens, tokenizer)


def test_special_tokens_that_a_text_spells_out_are_kept(tokenizer):
    text = "<|endoftext|> <|im_start|> <|fim_prefix|> <s> </s> <mask> [CLS]"
    assert texts(cut(text, 100, 50, tokenizer)) == [text]


# --- places ---------------------------------------------------------------------------------------------------------


def test_a_sentence_goes_on_across_a_page_and_the_chunk_names_both():
    pages = [Section("The tide turned and the boats", page=3), Section("came home. All was well.", page=4)]
    (chunk,) = split(pages, ChunkingStrategy(100, 0), WordTokens())
    assert chunk.text == "The tide turned and the boats\ncame home. All was well."
    assert (chunk.page, chunk.page_last) == (3, 4)


def test_pages_that_end_a_sentence_are_paragraphs_and_cut_first():
    pages = [Section("The tide turned here.", page=1), Section("All boats came home. Night fell then.", page=2)]
    first, second = split(pages, ChunkingStrategy(9, 0), WordTokens())
    assert (first.text, first.page, first.page_last) == ("The tide turned here.", 1, 1)
    assert (second.text, second.page, second.page_last) == ("All boats came home. Night fell then.", 2, 2)


def test_a_chunk_has_the_heading_under_which_it_begins():
    sections = [
        Section("Before any heading.\n"),
        Section("# Lamps\nThey burn oil.\n", heading="Lamps"),
        Section("# Bells\nThey ring.\n", heading="Bells"),
    ]
    chunks = split(sections, ChunkingStrategy(6, 0), WordTokens())
    assert [(chunk.text, chunk.heading) for chunk in chunks] == [
        ("Before any heading.", None),
        ("# Lamps\nThey burn oil.", "Lamps"),
        ("# Bells\nThey ring.", "Bells"),
    ]


# --- work -----------------------------------------------------------------------------------------------------------

AWKWARD = {
    "prose": "The keeper of the lamp writes a line. ",
    "one word": "abcdefghij",
    "dots": ".",
    "quotes after a stop": ".''''''",
    "blanks": " " * 99 + "x",
    "marks": "\u0301",
    "families": FAMILY,
    "paragraphs just over half": "word " * 55 + "\n\n",
    "ideographs": "灯台は岬の先にある",
    "joiners": "\u200d",
}


@pytest.mark.parametrize("unit", AWKWARD.values(), ids=AWKWARD.keys())
def test_work_grows_no_faster_than_the_text(unit):
    def work(characters: int) -> int:
        tokens = WordTokens()
        cut(unit * (characters // len(unit)), 100, 50, tokens)
        return tokens.characters

    assert work(60_000) <= 4 * work(20_000)
    assert work(60_000) <= 15 * 60_000


def test_five_megabytes_are_read_a_few_times_and_never_again():
    tokens = EveryFour()
    text = "The keeper of the lamp writes a line, and rests. " * 105_000
    chunks = cut(text, 800, 400, tokens)
    assert len(text) > 5_000_000
    assert tokens.characters <= 5 * len(text)
    assert chunks[-1].end == len(text.rstrip())
