from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path

import psutil
import pydantic
import pytest

from rag.errors import UnsupportedFile
from rag.reader import Reader
from rag.readers.ocr import MAX_PIXELS
from rag.settings import ReaderSettings
from tests.collections import DOCUMENTS, holds, needs_data
from tests.pdfs_made import GREY, pages_pdf, shown, text_pdf
from tests.rag.readers.reading import read, refusal

OCR = ReaderSettings(ocr=True)
needs_tesseract = pytest.mark.skipif(shutil.which("tesseract") is None, reason="tesseract is not installed")

# --- with a program in tesseract's place that says how large the picture is ------------------------------------------


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Put a shell script where tesseract would be found."""

    def put(script: str) -> None:
        folder = tmp_path / "bin"
        folder.mkdir()
        (folder / "tesseract").write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        (folder / "tesseract").chmod(0o700)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    return put


SIZE = 'head -c 32 | head -n 1; cat > /dev/null; echo "languages $4"'


def test_pages_without_text_are_recognised_in_their_place_and_others_left_alone(program):
    program(SIZE)
    data = pages_pdf([shown(b"The tide turned."), GREY, shown(b"The boats came home."), GREY])
    sections = read(data, "a.pdf", OCR)
    assert [section.page for section in sections] == [1, 2, 3, 4]
    assert sections[0].text == "The tide turned."
    assert "P5 2550 330" in sections[1].text  # Letter at 300 dots an inch
    assert "languages eng" in sections[3].text


def test_a_huge_page_is_drawn_small_enough(program):
    program(SIZE)
    data = pages_pdf([GREY]).replace(b"[0 0 612 792]", b"[0 0 14000 9000]")
    (section,) = read(data, "a.pdf", ReaderSettings(ocr=True, ocr_languages="deu+eng"))
    width, height = map(int, section.text.split()[1:3])
    assert 0.9 * MAX_PIXELS < width * height <= 1.01 * MAX_PIXELS
    assert "deu+eng" in section.text


def test_a_strip_that_is_very_long_is_drawn_short_enough(program):
    program(SIZE)
    (section,) = read(pages_pdf([GREY]).replace(b"[0 0 612 792]", b"[0 0 2 14000]"), "a.pdf", OCR)
    assert max(map(int, section.text.split()[1:3])) <= 20_000


def test_a_scan_in_which_nothing_is_found_says_that_ocr_was_tried(program):
    program("cat > /dev/null")
    assert "OCR (the setting `reader.ocr`) found no text" in refusal(pages_pdf([GREY]), "a.pdf", OCR).message


def test_the_programs_own_reason_is_told(program):
    program("cat > /dev/null; echo 'Error opening data file xyz.traineddata' >&2; exit 1")
    assert "xyz.traineddata" in refusal(pages_pdf([GREY]), "a.pdf", OCR).message


async def test_the_program_ends_with_the_process_that_reads(program, tmp_path):
    program(f'echo $$ > "{tmp_path}/pid"; exec sleep 600')
    (tmp_path / "scan.pdf").write_bytes(pages_pdf([GREY]))
    reader = Reader(ReaderSettings(ocr=True, max_seconds=3, processes=1))
    try:
        with pytest.raises(UnsupportedFile, match="3 seconds"):
            await reader.read(tmp_path / "scan.pdf", "scan.pdf")
        pid = int((tmp_path / "pid").read_text())
        async with asyncio.timeout(60):
            while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                await asyncio.sleep(0.01)
    finally:
        await reader.close()


# --- without it -------------------------------------------------------------------------------------------------------


def test_without_the_setting_a_scan_is_refused_and_the_setting_named():
    assert "setting `reader.ocr` switches on" in refusal(pages_pdf([GREY]), "a.pdf").message


def test_without_the_program_a_scan_is_refused_with_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    message = refusal(pages_pdf([GREY]), "a.pdf", OCR).message
    assert "tesseract is not installed" in message
    assert "apt-get install tesseract-ocr" in message


def test_without_the_package_a_scan_is_refused_with_what_to_install(program, monkeypatch):
    program(SIZE)
    monkeypatch.setitem(sys.modules, "pypdfium2", None)
    assert "pip install 'florilegium[ocr]'" in refusal(pages_pdf([GREY]), "a.pdf", OCR).message


def test_without_the_program_the_pages_that_have_text_are_read(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    (section,) = read(pages_pdf([GREY, shown(b"The tide turned.")]), "a.pdf", OCR)
    assert (section.page, section.text) == (2, "The tide turned.")


def test_a_document_with_text_on_every_page_needs_no_program(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read(text_pdf("The tide turned."), "a.pdf", OCR) == read(text_pdf("The tide turned."), "a.pdf")


@pytest.mark.parametrize("languages", ["", "eng;rm", "--psm", "eng+", "eng deu", "../eng"])
def test_languages_are_names(languages):
    with pytest.raises(pydantic.ValidationError, match="ocr_languages"):
        ReaderSettings(ocr_languages=languages)


# --- the real program -------------------------------------------------------------------------------------------------

SCANS = {
    "pdf/scan-wikipedia-en.pdf": "Optical character recognition",
    "pdf/scan-brochure.pdf": "LinnSequencer",
    "pdf/text-as-curves.pdf": "Sample Vector PDF for Testing",
}


@needs_data
@needs_tesseract
@pytest.mark.parametrize("file", SCANS)
async def test_a_scan_is_read_within_the_limits_of_the_reading_process(file):
    reader = Reader(ReaderSettings(ocr=True, max_seconds=300, processes=1))
    try:
        sections = await reader.read(DOCUMENTS / file, os.path.basename(file))
    finally:
        await reader.close()
    assert sections[0].page == 1
    assert holds("\n".join(section.text for section in sections), (SCANS[file],))


@needs_data
@needs_tesseract
async def test_a_page_of_enormous_size_does_not_exhaust_the_reading_process():
    reader = Reader(ReaderSettings(ocr=True, max_seconds=300, processes=1))
    try:
        sections = await reader.read(DOCUMENTS / "broken/huge-page.pdf", "huge-page.pdf")
        assert sections
    except UnsupportedFile as refused:
        assert "found no text" in refused.message  # noqa: PT017 - either will do
    finally:
        await reader.close()
