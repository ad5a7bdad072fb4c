"""Excel workbooks: a section for each sheet, a line for each row."""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Iterable

import openpyxl

from rag.readers.archive import Bounded, reading, repacked, unpacked
from rag.settings import ReaderSettings
from rag.types import Section

_MIDNIGHT = datetime.time()


def parse_sheets(data: bytes, limits: ReaderSettings) -> list[Section]:
    """The text of an XLSX: each sheet under its name, with the values that formulas had when it was saved."""
    bounded = Bounded(limits)
    sections = []
    with reading("an Excel workbook"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of styles and extensions that are not kept
        members = unpacked(data, "an Excel workbook", limits)
        workbook = openpyxl.load_workbook(repacked(members), read_only=True, data_only=True, keep_links=False)
        for sheet in workbook.worksheets:
            sheet.reset_dimensions()  # what is declared may be wrong
            rows = [bounded.take(row) for values in sheet.iter_rows(values_only=True) if (row := _row(values))]
            if rows:
                name = sheet.title.strip()
                sections.append(Section("\n".join([bounded.take(name), *rows]) + "\n\n", heading=name))
    return sections


def _row(values: Iterable[object]) -> str:
    """The cells that hold something."""
    return " | ".join(text for value in values if value is not None and (text := _shown(value)))


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, float):
        return f"{value:.15g}"
    if isinstance(value, datetime.datetime):
        return value.date().isoformat() if value.time() == _MIDNIGHT else value.isoformat(" ", "seconds")
    return " ".join(str(value).split())
