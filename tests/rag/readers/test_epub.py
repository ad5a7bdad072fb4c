from __future__ import annotations

from rag.settings import ReaderSettings
from tests.documents_made import CONTAINER, book, chapter, packed
from tests.rag.readers.reading import read, refusal, text_of


def test_chapters_come_in_the_order_of_reading_under_their_headings():
    chapters = {"b.xhtml": chapter("Second", "Later."), "a one.xhtml": chapter("First", "Earlier.")}
    sections = read(book(chapters, ["a one.xhtml", "b.xhtml"]), "a.epub")
    assert [(section.heading, section.text) for section in sections] == [
        ("First", "First\n\nEarlier."),
        ("Second", "Second\n\nLater."),
    ]


def test_a_chapter_with_named_signs_or_faults_is_read_as_a_page_of_the_web():
    named = chapter("Lamps", "oil&nbsp;and wick").replace("<title/>", "<title>Lamps</title>")
    faulty = "<html><body><h1>Bells</h1><p>ring <b>loud</p></body></html>"
    text = text_of(book({"a.xhtml": named, "b.xhtml": faulty}), "a.epub")
    assert "oil and wick" in text
    assert "ring loud" in text


def test_a_chapter_that_the_spine_names_twice_is_read_once():
    chapters = {"a.xhtml": chapter("Lamps", "They burn.")}
    assert text_of(book(chapters, ["a.xhtml"] * 50), "a.epub").count("They burn.") == 1


def test_a_name_that_climbs_out_of_the_archive_is_a_name_and_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = book({"a.xhtml": chapter("Lamps", "They burn.")}, extra={"../../escaped.txt": "free"})
    assert text_of(data, "a.epub") == "Lamps\n\nThey burn."
    assert list(tmp_path.rglob("*")) == []


def test_a_book_that_is_locked_says_so():
    lock = (
        '<encryption xmlns="urn:oasis:names:tc:opendocument:xmlns:container" xmlns:e="http://www.w3.org/2001/04/xmlenc#">'
        '<e:EncryptedData><e:CipherData><e:CipherReference URI="text/a.xhtml"/></e:CipherData></e:EncryptedData>'
        "</encryption>"
    )
    data = book({"a.xhtml": "\x00\x01"}, extra={"META-INF/encryption.xml": lock})
    assert "locked" in refusal(data, "a.epub").message


def test_a_book_without_its_table_of_parts_is_damaged():
    assert "text/book.opf" in refusal(packed({"META-INF/container.xml": CONTAINER}), "a.epub").message
    empty = '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"/>'
    assert "damaged" in refusal(packed({"META-INF/container.xml": empty}), "a.epub").message
    assert "no chapter" in refusal(book({"../../../out.xhtml": chapter("Lamps", "x")}), "a.epub").message


def test_more_text_than_allowed_is_refused_with_the_limit():
    data = book({"a.xhtml": chapter("Lamps", "x" * 50)})
    assert "more than 20 " in refusal(data, "a.epub", ReaderSettings(max_characters=20)).message
