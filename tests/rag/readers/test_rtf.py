from __future__ import annotations

import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st

from rag.errors import UnsupportedFile
from tests.rag.readers.reading import refusal, text_of

SPELLINGS = (
    b"{", b"}", b"\\", b" ", b"\n", b"tide", b"\\par", b"\\*", b"\\u-10179", b"\\u99999999", b"\\uc9", b"\\uc-1",
    b"\\'", b"\\'e5", b"\\'zz", b"\\ansicpg932", b"\\ansicpg99999", b"\\bin9999", b"\\fonttbl", b"\\f1",
    b"\\fcharset128", b"\xe5", b"\0", b"\\field", b"\\fldinst", b"HYPERLINK", b'"', b"\\cell", b"\\row", b"?", b";",
    b"-1",
)  # fmt: skip


def test_paragraphs_tables_and_signs_are_read():
    data = (
        rb"{\rtf1\ansi\ansicpg1252{\fonttbl{\f0 Arial;}}{\info{\author Nobody}}\f0 Fyren p\'e5 Gr\'e5holm\par "
        rb"lyser \b r\'f6tt\b0 .\par \u937? omega\par \trowd\cellx100\cellx200 Port\cell Time\cell\row }"
    )
    text = text_of(data, "a.rtf")
    assert "Fyren på Gråholm\nlyser rött." in text
    assert "Ω omega" in text
    assert "Port|Time" in text
    for hidden in ("Arial", "Nobody", "ansicpg"):
        assert hidden not in text


def test_bytes_that_are_not_escaped_belong_to_the_code_page():
    data = rb"{\rtf1\ansi\ansicpg1251 " + "Маяк горит".encode("cp1251") + rb"\par}"
    assert "Маяк горит" in text_of(data, "a.rtf")


def test_halves_of_characters_do_no_harm():
    assert text_of(rb"{\rtf1\ansi one \u-10179?\u-8704? two \u-10179? three}", "a.rtf").encode()


def test_what_is_no_rtf_is_refused():
    assert "not an RTF document" in refusal(b"plain words", "a.rtf").message
    assert "no text" in refusal(rb"{\rtf1\ansi }", "a.rtf").message


@settings(max_examples=300)
@given(st.lists(st.sampled_from(SPELLINGS), max_size=40))
def test_any_spelling_gives_text_or_a_reason(parts):
    with contextlib.suppress(UnsupportedFile):  # and nothing else
        assert text_of(b"{\\rtf1" + b"".join(parts), "a.rtf").encode()
