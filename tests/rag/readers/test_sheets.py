from __future__ import annotations

import datetime

import openpyxl

from rag.settings import ReaderSettings
from rag.types import Section
from tests.documents_made import members_of, packed, saved_sheets, sheets
from tests.rag.readers.reading import read, refusal, text_of


def test_a_sheet_is_a_section_under_its_name_with_a_line_for_each_row():
    data = sheets(
        Tides=[["Port", "Height"], ["Skarvik", 1.5], [None, None], ["Gråholm", 2.0, True]],
        Empty=[],
        Ferries=[["night ferry", 1234567890123]],
    )
    assert read(data, "a.xlsx") == [
        Section("Tides\nPort | Height\nSkarvik | 1.5\nGråholm | 2 | TRUE\n\n", heading="Tides"),
        Section("Ferries\nnight ferry | 1234567890123\n\n", heading="Ferries"),
    ]


def test_dates_are_written_as_dates_and_lines_within_a_cell_are_joined():
    row = [datetime.datetime(2026, 3, 1), datetime.datetime(2026, 3, 1, 21, 30), datetime.time(9, 5), "two\nlines"]
    text = text_of(sheets(Log=[row]), "a.xlsx")
    assert "2026-03-01 | 2026-03-01 21:30:00 | 09:05:00 | two lines" in text


def test_a_formula_shows_the_value_that_it_had_when_it_was_saved():
    members = members_of(sheets(Sums=[["total", "=1+2"]]))
    sheet = members["xl/worksheets/sheet1.xml"]
    assert b"<f>1+2</f><v" in sheet
    members["xl/worksheets/sheet1.xml"] = sheet.replace(b"<f>1+2</f><v />", b"<f>1+2</f><v>3</v>").replace(
        b"<f>1+2</f><v></v>", b"<f>1+2</f><v>3</v>"
    )
    assert "total | 3" in text_of(packed(members), "a.xlsx")


def test_signs_outside_the_basic_plane_are_kept():
    assert "🤠😅" in text_of(sheets(Moods=[["🤠😅"]]), "a.xlsx")


def test_a_sheet_that_lies_about_its_size_is_read_whole():
    members = members_of(sheets(Tides=[["a", "b"], ["c", "d"]]))
    sheet = members["xl/worksheets/sheet1.xml"]
    assert b'ref="A1:B2"' in sheet
    members["xl/worksheets/sheet1.xml"] = sheet.replace(b'ref="A1:B2"', b'ref="A1"')
    assert "c | d" in text_of(packed(members), "a.xlsx")


def test_one_text_that_is_named_again_and_again_counts_every_time():
    workbook = openpyxl.Workbook()
    for _ in range(50):
        workbook.active.append(["x" * 1000])
    limits = ReaderSettings(max_characters=20_000)
    assert "more than 20000 " in refusal(saved_sheets(workbook), "a.xlsx", limits).message


def test_a_workbook_of_empty_sheets_is_refused():
    assert "no text" in refusal(sheets(One=[], Two=[[None]]), "a.xlsx").message
