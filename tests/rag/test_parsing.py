from __future__ import annotations

import codecs
import io
import zipfile
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pypdf import PdfReader, PdfWriter

from rag.errors import UnsupportedFile
from rag.parsing import parse
from rag.settings import ReaderSettings
from rag.types import ErrorCode, Section
from tests.collections import DATA, Sample, holds, needs_data, samples
from tests.documents_made import SOUND
from tests.pdfs_made import FONT, GREY, pages_pdf, shown, stream, text_pdf

LIMITS = ReaderSettings()
BEACON = "Fyrlampan på Gråholm lyser rött över öarna i väster.\nÄven i dimma.\n"


def text_of(data: bytes, filename: str) -> str:
    return "\n".join(section.text for section in parse(data, filename, LIMITS))


def outcome(source: Path | bytes, filename: str) -> tuple[str, str]:
    """The text, which any database and any JSON takes, or else the reason of the refusal."""
    try:
        sections = parse(source, filename, LIMITS)
    except UnsupportedFile as refused:
        return "", refused.message
    text = "\n".join(section.text for section in sections)
    assert "\0" not in text
    text.encode()  # no half of a character
    return text, ""


def refusal(data: bytes, filename: str, limits: ReaderSettings = LIMITS) -> UnsupportedFile:
    with pytest.raises(UnsupportedFile) as raised:
        parse(data, filename, limits)
    assert raised.value.message.endswith(".")
    return raised.value


# --- sample documents -----------------------------------------------------------------------------------------------

# What the message must speak of, by a word of what the sample's line says is wrong with it.
REASONS = {
    "password": "password",
    "cut off": "cut off",
    "empty file": "empty",
    "content is not PDF": "HTML",
    "not a PDF": "not a PDF",
    "no page tree": "page tree",
    "no pages": "page",
    "no readable page": "PDF",
    "no text in it": "no text",
    "no text on its page": "no text layer",
    "blank page": "no text layer",
    "image only": "reader.ocr",
    "no text objects": "reader.ocr",
    "XFA": "no text layer",
    "meaningless signs": "meaningless signs",
    "checksum": "CRC",
    "not a complete archive": "cut off",
    "nested too deep": "nested more than 64 levels",
    "XML entit": "declares XML entities",
    "unpacks to over": "more than 100 MiB",
    "not a DOCX": "is a PDF",
    "no word/document.xml": "does not hold the parts of a Word document",
    "binary Word 97": "save it as .docx",
}


def ids(sample: Sample) -> str:
    return sample.file


@needs_data
@pytest.mark.parametrize("sample", samples() if DATA.is_dir() else [], ids=ids)
def test_a_sample_document_has_the_outcome_that_is_right_for_it(sample):
    text, refused = outcome(sample.path, sample.file)
    if refused:
        assert sample.outcome != "text", refused
        if sample.outcome != "text-or-refuse":
            told = next(reason for fault, reason in REASONS.items() if fault in "|".join(sample.expected))
            assert told in refused
        return
    assert sample.outcome in ("text", "text-or-refuse")
    assert [part for part in sample.expected if not holds(text, (part,))] == []


# --- encodings ------------------------------------------------------------------------------------------------------

UNICODE = {
    "utf-8": (b"", "utf-8"),
    "utf-8 with mark": (codecs.BOM_UTF8, "utf-8"),
    "utf-16-le with mark": (codecs.BOM_UTF16_LE, "utf-16-le"),
    "utf-16-be with mark": (codecs.BOM_UTF16_BE, "utf-16-be"),
    "utf-32-le with mark": (codecs.BOM_UTF32_LE, "utf-32-le"),
    "utf-32-be with mark": (codecs.BOM_UTF32_BE, "utf-32-be"),
    "utf-16-le": (b"", "utf-16-le"),
    "utf-16-be": (b"", "utf-16-be"),
    "windows-1252": (b"", "cp1252"),
}


@pytest.mark.parametrize(("mark", "encoding"), UNICODE.values(), ids=UNICODE.keys())
def test_a_text_is_the_same_in_every_encoding(mark, encoding):
    assert parse(mark + BEACON.encode(encoding), "fyr.txt", LIMITS) == [Section(BEACON)]


@settings(max_examples=100)
@given(st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufeff"), min_size=1))
@pytest.mark.parametrize(("mark", "encoding"), list(UNICODE.values())[1:6], ids=list(UNICODE)[1:6])
def test_a_byte_order_mark_settles_the_encoding_of_any_text(mark, encoding, text):
    data = mark + text.encode(encoding)
    if text.strip():
        assert parse(data, "any.txt", LIMITS) == [Section(text)]
    else:
        assert "no text" in refusal(data, "any.txt").message


KINDS = "txt md html json csv rtf pdf docx pptx xlsx epub"


@settings(max_examples=200)
@given(st.binary(max_size=400), st.sampled_from([f"a.{kind}" for kind in KINDS.split()]))
def test_any_bytes_are_text_or_refused(data, filename):
    text, refused = outcome(data, filename)
    assert bool(text.strip()) != bool(refused)


def test_text_that_is_cut_within_a_character_is_refused_as_damaged():
    assert "damaged UTF-8" in refusal(BEACON.encode() * 9 + "ö".encode()[:1], "a.txt").message
    assert "UTF-16" in refusal(codecs.BOM_UTF16_LE + BEACON.encode("utf-16-le")[:-1], "a.txt").message


def test_nul_bytes_within_text_are_dropped():
    assert text_of(b"First line.\0\0\nSecond line.\n", "a.txt") == "First line.\nSecond line.\n"


def test_special_tokens_that_a_text_spells_out_are_kept_to_the_letter():
    text = "\n\n".join(
        f"Here {token} stands." for token in ("<|endoftext|>", "<|im_start|>", "<s>", "</s>", "<mask>", "[CLS]")
    )
    for filename in ("tokens.md", "tokens.txt"):
        assert text_of(text.encode(), filename) == text
    escaped = text.replace("<", "&lt;").replace(">", "&gt;")
    assert "Here <|im_start|> stands." in text_of(f"<p>{escaped}</p>".encode(), "tokens.html")


def test_plain_text_is_kept_to_the_letter():
    text = "  one\ttwo \r\n\r\n\r\n three \u00a0 \n"
    for extension in ("txt", "py", "csv", "xml"):
        assert text_of(text.encode(), f"a.{extension}") == text


# --- what is not text -----------------------------------------------------------------------------------------------


def zipped() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a.txt", "text")
    return buffer.getvalue()


DRESSED = {
    "zip": (zipped(), "ZIP"),
    "png": (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "PNG"),
    "jpeg": (b"\xff\xd8\xff\xe0" + bytes(range(256)), "JPEG"),
    "pdf": (text_pdf("The tide turned."), "PDF"),
    "deflated": (zlib.compress(bytes(range(256)) * 40)[2:], "binary|encoding"),
    "integers": (b"".join(number.to_bytes(4, "little") for number in range(3000)), "binary|encoding|UTF-16"),
    "control characters": (bytes(range(1, 32)) * 30, "binary"),
}


@pytest.mark.parametrize(("data", "kind"), DRESSED.values(), ids=DRESSED.keys())
@pytest.mark.parametrize("filename", ["notes.txt", "notes.md", "notes.html"])
def test_binary_data_that_is_named_as_text_is_refused(data, kind, filename):
    refused = refusal(data, filename)
    assert any(word in refused.message for word in kind.split("|"))


@pytest.mark.parametrize("filename", ["photo.png", "song.mp3", "README", "archive.tar.gz", ".txt"])
def test_an_extension_that_is_not_read_is_unsupported_whatever_is_in_it(filename):
    refused = refusal(b"plain text", filename)
    assert refused.reason is ErrorCode.UNSUPPORTED_FILE
    assert "not supported" in refused.message


@pytest.mark.parametrize(("filename", "modern"), [("a.doc", ".docx"), ("a.ppt", ".pptx"), ("a.XLS", ".xlsx")])
def test_old_office_formats_are_refused_with_the_way_out(filename, modern):
    refused = refusal(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), filename)
    assert refused.reason is ErrorCode.UNSUPPORTED_FILE
    assert f"save it as {modern}" in refused.message


OPENAI = (
    ".c .cpp .cs .css .doc .docx .go .html .java .js .json .md .pdf .php .pptx .py .rb .sh .tex .ts .txt"  # file search
)


@pytest.mark.parametrize("extension", OPENAI.split())
def test_every_format_that_openai_lists_is_known(extension):
    sound = {".pdf": text_pdf("The tide turned."), ".json": b'"The tide turned."'}
    sound |= {f".{name.partition('.')[2]}": make() for name, make in SOUND.items()}
    if extension == ".doc":
        assert "save it as .docx" in refusal(b"x", "a.doc").message
    else:
        assert "The tide turned." in text_of(sound.get(extension, b"The tide turned."), f"a{extension}")


def test_rows_of_tables_in_text_are_kept_and_an_open_quote_is_no_fault():
    for text in ('port,time\n"Skarvik, old",nine\n', "port\ttime\nSkarvik\t9\n", 'a,b\n"never closed,1\n'):
        assert text_of(text.encode(), "a.csv") == text
        assert text_of(text.encode(), "a.tsv") == text
    lines = '{"a": 1}\nnot json\n{"b": 2}\n'
    assert text_of(lines.encode(), "a.jsonl") == lines


def test_xml_is_read_in_the_encoding_that_it_declares():
    text = '<?xml version="1.0" encoding="windows-1251"?><p>Маяк горит</p>'
    assert text_of(text.encode("cp1251"), "a.xml") == text


@pytest.mark.parametrize("filename", ["A.TXT", "b.Md", "c.HTML", "d.PDF"])
def test_the_case_of_an_extension_does_not_matter(filename):
    data = text_pdf("The tide turned.") if filename.endswith("PDF") else b"The tide turned."
    assert text_of(data, filename) == "The tide turned."


def test_kinds_are_unsupported_and_damage_is_invalid():
    assert refusal(zipped(), "a.txt").reason is ErrorCode.UNSUPPORTED_FILE
    assert refusal(b"", "a.txt").reason is ErrorCode.INVALID_FILE
    assert refusal(text_pdf("x")[:80], "a.pdf").reason is ErrorCode.INVALID_FILE


@pytest.mark.parametrize(
    ("data", "filename"),
    [
        (b" \n\t ", "a.txt"),
        (b"\n", "a.md"),
        (b"<p> </p>", "a.html"),
        (b"<script>x()</script>", "a.html"),
        (b"\0", "a.txt"),
    ],
)
def test_a_file_without_a_visible_character_is_refused(data, filename):
    assert "text" in refusal(data, filename).message


def test_more_characters_than_allowed_are_refused_with_both_numbers():
    message = refusal(b"x" * 101, "a.txt", ReaderSettings(max_characters=100)).message
    assert "101" in message
    assert "100" in message


def test_json_is_kept_as_it_is_written_if_it_is_json():
    assert text_of(b'{"a": [1,  2]}\n', "a.json") == '{"a": [1,  2]}\n'
    assert "not JSON" in refusal(b'{"a": ', "a.json").message
    assert "nested" in refusal(b"[" * 100 + b"]" * 100, "a.json").message
    assert "nested" in refusal(b"[" * 100_000 + b"]" * 100_000, "a.json").message


# --- headings -------------------------------------------------------------------------------------------------------


def test_markdown_is_parted_at_its_headings_and_nothing_is_lost():
    text = (
        "Before.\n\n# Lamps #\nOil.\n```\n# no heading\n```\n## C# and F#\nCode.\nBells\n=====\n"
        "not alone\n\nBells\n=====\nRing.\n"
    )
    sections = parse(text.encode(), "a.md", LIMITS)
    assert "".join(section.text for section in sections) == text
    assert [section.heading for section in sections] == [None, "Lamps", "C# and F#", "Bells"]
    assert "# no heading" in sections[1].text


@settings(max_examples=150)
@given(st.text(st.sampled_from("#=-`~ \ta\nb"), min_size=1))
def test_any_markdown_is_kept_to_the_letter(text):
    if text.strip():
        assert "".join(section.text for section in parse(text.encode(), "a.md", LIMITS)) == text


def test_a_heading_line_of_a_million_signs_is_read():
    text = "# a" + " " * 500_000 + "x" + " #" * 250_000
    (section,) = parse(text.encode(), "a.md", LIMITS)
    assert section.text == text


PAGE = """<!DOCTYPE html><html><head><title>The Lamp</title><style>p { color: red }</style>
<script>var hidden = "script";</script></head><body><!-- a comment --><h1>Oil</h1><p>They burn <b>oil</b>.</p>
<img src="data:image/png;base64,QUJDREVG" alt="A lamp"><noscript>Without script.</noscript>
<h2>Bells &amp; horns</h2><ul><li>ring</li><li>blow</li></ul><template>later</template></body></html>"""


def test_a_page_gives_what_is_seen_under_the_headings_it_has():
    sections = parse(PAGE.encode(), "lamp.html", LIMITS)
    text = "\n".join(section.text for section in sections)
    for hidden in ("color", "var hidden", "a comment", "base64", "QUJD"):
        assert hidden not in text
    found = {section.heading: section.text for section in sections}
    assert list(found) == ["The Lamp", "Oil", "Bells & horns"]
    assert "They burn oil." in found["Oil"]
    assert "ring" in found["Bells & horns"]


def test_references_to_characters_that_are_none_do_no_harm():
    text, _ = outcome(b"<p>one &#0; two &#xD800; three &#xFFFE; four</p>", "a.html")
    assert "one" in text
    assert "four" in text


@pytest.mark.parametrize("encoding", ["utf-7", "unicode_escape", "raw_unicode_escape", "punycode", "idna", "zlib"])
def test_a_page_that_declares_an_odd_encoding_gives_sound_text_or_a_reason(encoding):
    page = f'<meta charset="{encoding}"><p>one +2AA- two \\ud800 three</p>'.encode()
    assert text_of(page, "a.html") == "one +2AA- two \\ud800 three"


def test_a_page_is_read_in_the_encoding_that_it_declares():
    page = '<meta charset="windows-1251"><p>Маяк на мысе горит красным.</p>'
    assert text_of(page.encode("cp1251"), "a.html") == "Маяк на мысе горит красным."


# --- PDF ------------------------------------------------------------------------------------------------------------


def test_pages_are_numbered_from_one_and_empty_ones_are_counted():
    sections = parse(text_pdf("The tide turned.", "", "The boats came home."), "a.pdf", LIMITS)
    assert sections == [Section("The tide turned.", page=1), Section("The boats came home.", page=3)]


def test_a_pdf_of_pictures_is_refused_and_a_mixed_one_read():
    refused = refusal(pages_pdf([GREY]), "scan.pdf")
    assert refused.reason is ErrorCode.INVALID_FILE
    assert "no text layer" in refused.message
    assert "OCR" in refused.message
    mixed = parse(pages_pdf([GREY, shown(b"Only this page has words.")]), "scan.pdf", LIMITS)
    assert mixed == [Section("Only this page has words.", page=2)]


def locked(password: str) -> bytes:
    writer = PdfWriter(clone_from=PdfReader(io.BytesIO(text_pdf("The tide table."))))
    writer.encrypt(password, "owner", algorithm="AES-256")
    buffer = io.BytesIO()
    writer.write(buffer)
    return buffer.getvalue()


def test_a_pdf_locked_with_a_blank_password_opens_and_one_with_a_password_is_refused():
    assert text_of(locked(""), "a.pdf") == "The tide table."
    refused = refusal(locked("sesame"), "a.pdf")
    assert refused.reason is ErrorCode.INVALID_FILE
    assert "password" in refused.message


def test_a_font_that_maps_to_nul_halves_of_characters_and_ligatures_gives_sound_text():
    unicode_map = (
        b"begincmap 1 begincodespacerange <00> <ff> endcodespacerange 7 beginbfchar <41> <0000> <42> <d800> "
        b"<43> <fb01> <78> <0078> <79> <0079> <7a> <007a> <77> <0077> endbfchar endcmap"
    )
    font = FONT.replace(b" >>", b" /ToUnicode 4 0 R >>")
    data = pages_pdf([shown(b"xAyBzCw xyz xyz")], font=font, extra=[stream(unicode_map)])
    text = text_of(data, "a.pdf")
    assert text == "xyzfiw xyz xyz"
    assert text.encode("utf-8")


def test_a_pdf_with_more_pages_or_characters_than_allowed_is_refused_with_the_limit():
    data = text_pdf("The tide turned.", "The boats came home.")
    assert "at most 1 " in refusal(data, "a.pdf", ReaderSettings(max_pages=1)).message
    assert "more than 20 " in refusal(data, "a.pdf", ReaderSettings(max_characters=20)).message


def test_an_html_error_page_named_pdf_is_called_what_it_is():
    assert "an HTML page" in refusal(b"<html><body>404</body></html>", "a.pdf").message


def paragraphs(*lines: str) -> str:
    shows = b" 0 -14 Td ".join(b"(%b) Tj" % line.encode("cp1252") for line in lines)
    return text_of(pages_pdf([b"BT /F1 12 Tf 72 720 Td " + shows + b" ET"]), "a.pdf")


def test_lines_are_joined_to_paragraphs_and_broken_words_mended():
    text = paragraphs(
        "The keeper of the light-", "house writes a line every evening and", "then rests.", "The lighthouse is white."
    )
    assert "lighthouse writes a line every evening and then rests." in text
    assert "light-" not in text
