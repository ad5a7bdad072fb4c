from __future__ import annotations

import codecs
import json
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag.errors import InvalidRequest, UnsupportedFile
from rag.parsing import parse
from rag.settings import ReaderSettings
from rag.uploads import checked
from tests.collections import DATA, Sample, needs_data, samples
from tests.documents_made import SOUND

TIDE = "Flodvågen vände vid Gråholm. 潮が変わった。\n"


async def taken(filename: str, data: bytes, step: int = 50) -> None:
    """The bytes come out as they went in, piece by piece."""

    async def stream() -> AsyncIterator[bytes]:
        for start in range(0, len(data), step):
            yield data[start : start + step]

    assert b"".join([piece async for piece in checked(filename, stream())]) == data


async def refusal(filename: str, data: bytes, step: int = 50) -> str:
    with pytest.raises(InvalidRequest) as raised:
        await taken(filename, data, step)
    assert raised.value.param == "file"
    assert filename in raised.value.message
    return raised.value.message


@needs_data
@pytest.mark.parametrize("sample", samples() if DATA.is_dir() else [], ids=lambda sample: sample.file)
async def test_no_sample_that_can_be_read_is_refused_at_upload(sample: Sample):
    data = sample.path.read_bytes()
    try:
        await taken(sample.path.name, data, 65_536)
    except InvalidRequest:
        assert sample.outcome != "text"


FORMS = {
    "utf-8": TIDE.encode(),
    "utf-8 with mark": codecs.BOM_UTF8 + TIDE.encode(),
    "utf-16": codecs.BOM_UTF16_LE + TIDE.encode("utf-16-le"),
    "utf-16 big": codecs.BOM_UTF16_BE + TIDE.encode("utf-16-be"),
    "utf-32": codecs.BOM_UTF32_LE + TIDE.encode("utf-32-le"),
    "utf-32 big": codecs.BOM_UTF32_BE + TIDE.encode("utf-32-be"),
    "utf-16 without mark": "The tide turned. ".encode("utf-16-le") * 900,
    "nul within": b"one\0two",
}


@pytest.mark.parametrize("data", FORMS.values(), ids=FORMS.keys())
@pytest.mark.parametrize("step", [1, 7, 65_536])
async def test_every_form_of_unicode_is_taken_in_any_pieces(data, step):
    await taken("tide.txt", data, step)


NO_FORM = {
    "latin": "Flodvågen vände. ".encode("latin-1") * 3,
    "shift-jis": "潮が変わった。".encode("shift-jis") * 3,
    "late": b"The tide turned. " * 2000 + b"\xe5",
    "cut within a character": "å".encode()[:1],
    "half a unit": codecs.BOM_UTF16_LE + b"a\0b",
    "lone surrogate": codecs.BOM_UTF16_LE + b"\0\xd8a\0",
    "noise": bytes(range(128, 256)) * 9,
}


@pytest.mark.parametrize("data", NO_FORM.values(), ids=NO_FORM.keys())
@pytest.mark.parametrize("filename", ["a.txt", "a.MD", "a.csv", "a.py", "a.jsonl"])
async def test_text_in_no_form_of_unicode_is_refused_with_the_way_out(filename, data):
    assert "save it as UTF-8" in await refusal(filename, data)


async def test_json_in_no_form_of_unicode_is_refused_with_the_way_out():
    for text, encoding in (("Flodvåg", "latin-1"), ("Маяк", "cp1251"), ("潮が", "shift-jis")):
        assert "save it as UTF-8" in await refusal("a.json", f'["{text}"]'.encode(encoding))


async def test_a_page_may_declare_its_own_encoding():
    page = '<meta charset="iso-8859-1"><p>Flodvågen'.encode("latin-1")
    await taken("a.html", page)
    await taken("a.xml", '<?xml version="1.0" encoding="iso-8859-1"?><p>å</p>'.encode("latin-1"))


@given(st.text(), st.sampled_from(["utf-8", "utf-16", "utf-32"]), st.integers(1, 40))
async def test_any_text_is_taken(text, encoding, step):
    if text:
        await taken("a.txt", (codecs.BOM_UTF8 if encoding == "utf-8" else b"") + text.encode(encoding), step)


@given(st.binary(min_size=1))
async def test_what_reading_would_take_as_unicode_is_taken_here_and_the_other_way_round(data):
    try:
        await taken("a.json", data)
    except InvalidRequest:
        with pytest.raises(UnsupportedFile):
            parse(data, "a.json", ReaderSettings())


async def test_json_is_looked_through_in_every_form():
    value = {"tide": [1, 2.5, None, True, "Gråholm 潮"]}
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-32"):
        await taken("a.json", json.dumps(value, ensure_ascii=False).encode(encoding), 3)
        assert "not JSON" in await refusal("a.json", json.dumps(value)[:-1].encode(encoding), 3)
    await taken("a.ipynb", b"[" * 64 + b"]" * 64)
    assert "64 levels" in await refusal("a.json", b"[" * 100_000, 65_536)


async def test_lines_of_json_are_text():
    await taken("batch.jsonl", b'{"custom_id": "a"}\n{not json}\n')


async def test_what_its_first_bytes_name_and_what_has_another_ending_is_kept():
    await taken("notes.txt", SOUND["a.docx"]())
    await taken("photo.png", b"\x89PNG\r\n\x1a\n" + bytes(range(256)))
    for name in ("letter.doc", "tide.bin", "README", "scan.tiff"):
        await taken(name, bytes(range(256)))


async def test_a_pdf_that_is_none_is_refused():
    assert "not a PDF" in await refusal("a.pdf", b"<html>404</html>")
    assert "not a PDF" in await refusal("a.PDF", b"x" * 5000 + b"%PDF-1.7", 700)
    await taken("a.pdf", b"\n" * 1000 + b"%PDF-1.7 and so on", 9)


async def test_nothing_is_refused_before_the_bytes_that_tell_have_come():
    seen = []

    async def stream() -> AsyncIterator[bytes]:
        for _ in range(1000):
            seen.append(len(seen))
            yield b"\xe5" * 4096

    with pytest.raises(InvalidRequest):
        async for _ in checked("a.txt", stream()):
            pass
    assert len(seen) == 2  # and nothing is read on once they have


@pytest.mark.parametrize("filename", ["a.txt", "a.json", "a.pdf", "a.bin"])
async def test_no_bytes_are_refused(filename):
    assert "empty" in await refusal(filename, b"")
