from __future__ import annotations

import contextlib
import io
import tracemalloc
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag.errors import UnsupportedFile
from rag.readers.archive import unpacked
from rag.settings import ReaderSettings
from rag.types import ErrorCode
from tests.documents_made import SOUND, chapter, members_of, packed, with_lie, word
from tests.rag.readers.reading import LIMITS, read, refusal, text_of

MAIN = {
    "a.docx": "word/document.xml",
    "a.pptx": "ppt/slides/slide1.xml",
    "a.xlsx": "xl/workbook.xml",
    "a.epub": "text/one.xhtml",
}
SMALL = ReaderSettings(max_unpacked_mb=1)
DTD = '<!DOCTYPE x [<!ENTITY tide "ebb"><!ENTITY % moon SYSTEM "file:///etc/passwd">]>'


@pytest.mark.parametrize("filename", SOUND)
def test_a_sound_document_is_read(filename):
    assert "The tide turned." in text_of(SOUND[filename](), filename)


@pytest.mark.parametrize("filename", SOUND)
def test_what_unpacks_to_too_much_is_refused_before_it_is_unpacked(filename):
    bomb = packed(members_of(SOUND[filename]()) | {"media/x.bin": bytes(200 * 1024 * 1024)})
    assert len(bomb) < 1024 * 1024
    tracemalloc.start()
    try:
        assert "unpacks to more than 100 MiB" in refusal(bomb, filename).message
        assert tracemalloc.get_traced_memory()[1] < 20 * 1024 * 1024
    finally:
        tracemalloc.stop()


def test_many_members_that_are_large_only_together_are_refused():
    members = members_of(word("x")) | {f"media/{number}.bin": bytes(300_000) for number in range(4)}
    assert "more than 1 MiB" in refusal(packed(members), "a.docx", SMALL).message


def test_a_member_that_lies_about_its_size_never_grows_beyond_what_it_declares():
    data = with_lie(word("The tide turned."), "word/media/x.bin", 80 * 1024 * 1024, declared=100)
    tracemalloc.start()
    try:
        members = unpacked(data, "a Word document", SMALL)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert members["word/media/x.bin"] == bytes(100)
    assert peak < 8 * 1024 * 1024
    assert text_of(data, "a.docx") == "The tide turned."


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("filename", SOUND)
def test_a_part_that_declares_entities_is_refused_by_name(filename, encoding):
    members = members_of(SOUND[filename]())
    name = MAIN[filename]
    root = members[name].decode().partition("?>")[2] or members[name].decode()
    members[name] = f'<?xml version="1.0" encoding="utf-16"?>{DTD}{root}'.replace(
        "utf-16", encoding.removesuffix("-le").removesuffix("-be")
    ).encode(encoding)
    message = refusal(packed(members), filename).message
    assert f"'{name}' declares XML entities" in message
    assert "'tide'" in message
    assert "root:" not in message


def test_a_document_type_without_entities_is_common_in_books():
    named = '<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.1//EN" "http://www.w3.org/TR/xhtml11/DTD/xhtml11.dtd">'
    members = members_of(SOUND["a.epub"]())
    one = chapter("Tides", "The tide turned.").replace("?>", f"?>{named}")
    assert "The tide turned." in text_of(packed(members | {"text/one.xhtml": one}), "a.epub")


@pytest.mark.parametrize("filename", SOUND)
def test_an_archive_that_is_cut_off_is_called_so(filename):
    data = SOUND[filename]()
    assert "cut off" in refusal(data[: len(data) * 2 // 3], filename).message


@pytest.mark.parametrize("filename", SOUND)
def test_a_wrong_byte_within_a_member_is_noticed(filename):
    data = bytearray(SOUND[filename]())
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        member = archive.getinfo(MAIN[filename])
        start = member.header_offset + 30 + len(member.filename)
        data[start + member.compress_size // 2] ^= 0x55
    message = refusal(bytes(data), filename).message
    assert "damaged" in message
    assert MAIN[filename] in message


def test_an_archive_that_is_locked_needs_a_password():
    data = bytearray(word("x"))
    data[data.rindex(b"PK\x01\x02") + 8] |= 1
    assert "password" in refusal(bytes(data), "a.docx").message


def test_a_workbook_in_a_locked_container_needs_a_password():
    container = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(512) + "EncryptedPackage".encode("utf-16-le") + bytes(512)
    for filename in ("a.docx", "a.xlsx", "a.pptx"):
        refused = refusal(container, filename)
        assert refused.reason is ErrorCode.INVALID_FILE
        assert "password" in refused.message


def test_one_kind_of_document_under_the_name_of_another_is_called_what_it_is():
    refused = refusal(SOUND["a.xlsx"](), "a.docx")
    assert refused.reason is ErrorCode.UNSUPPORTED_FILE
    assert "an Excel workbook" in refused.message
    assert "does not hold the parts of a Word document" in refusal(packed({"a.txt": "x"}), "a.docx").message
    assert "does not hold the parts" in refusal(packed({}), "a.epub").message


@pytest.mark.parametrize("filename", ["a.docx", "a.pptx", "a.xlsx"])
def test_the_strict_variant_is_refused_with_the_way_out(filename):
    members = members_of(SOUND[filename]())
    usual = b"http://schemas.openxmlformats.org/officeDocument/2006/"
    members["_rels/.rels"] = members["_rels/.rels"].replace(usual, b"http://purl.oclc.org/ooxml/officeDocument/")
    assert "save it in the usual form" in refusal(packed(members), filename).message


@settings(max_examples=60)
@given(st.sampled_from(sorted(SOUND)), st.data())
def test_any_damage_gives_text_or_a_reason(filename, data):
    members = members_of(_sound(filename))
    name = data.draw(st.sampled_from(sorted(members)))
    content = bytearray(members[name])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(0, len(content) - 1)))
        content[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    with contextlib.suppress(UnsupportedFile):  # and nothing else
        sections = read(packed(members | {name: bytes(content)}), filename, LIMITS)
        assert any(section.text.strip() for section in sections)


_MADE: dict[str, bytes] = {}


def _sound(filename: str) -> bytes:
    return _MADE.setdefault(filename, SOUND[filename]())
