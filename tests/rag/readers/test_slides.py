from __future__ import annotations

import pptx
from pptx.chart.data import CategoryChartData
from pptx.enum.chart import XL_CHART_TYPE
from pptx.util import Inches

from rag.settings import ReaderSettings
from rag.types import Section
from tests.documents_made import members_of, packed, saved_slides, slides
from tests.rag.readers.reading import read, refusal, text_of

BOX = (Inches(1), Inches(1), Inches(4), Inches(1))


def test_a_slide_is_a_page_with_its_title_and_empty_ones_are_counted():
    assert read(slides("Lamps", "", "Bells"), "a.pptx") == [
        Section("Lamps\n\n", page=1, heading="Lamps"),
        Section("Bells\n\n", page=3, heading="Bells"),
    ]


def test_tables_groups_notes_and_line_breaks_are_read():
    presentation = pptx.Presentation()
    slide = presentation.slides.add_slide(presentation.slide_layouts[5])
    slide.shapes.title.text = "Tides"
    table = slide.shapes.add_table(2, 2, *BOX).table
    for row, values in enumerate([("Port", "Time"), ("Skarvik", "nine")]):
        for column, value in enumerate(values):
            table.cell(row, column).text = value
    group = slide.shapes.add_group_shape().shapes.add_group_shape()
    group.shapes.add_textbox(*BOX).text_frame.text = "deep\vwithin"
    slide.notes_slide.notes_text_frame.text = "Speak up."
    (section,) = read(saved_slides(presentation), "a.pptx")
    assert section.text == "Tides\n\nPort | Time\nSkarvik | nine\n\ndeep\nwithin\n\nSpeak up.\n\n"


def test_cells_that_are_merged_are_read_once():
    presentation = pptx.Presentation()
    slide = presentation.slides.add_slide(presentation.slide_layouts[6])
    table = slide.shapes.add_table(1, 3, *BOX).table
    table.cell(0, 0).text, table.cell(0, 2).text = "wide", "last"
    table.cell(0, 0).merge(table.cell(0, 1))
    assert text_of(saved_slides(presentation), "a.pptx").strip() == "wide | last"


def test_a_chart_gives_its_titles_series_and_categories():
    presentation = pptx.Presentation()
    slide = presentation.slides.add_slide(presentation.slide_layouts[6])
    data = CategoryChartData()
    data.categories = ["Skarvik", "Gråholm"]
    data.add_series("Ferries", (3, 5))
    chart = slide.shapes.add_chart(XL_CHART_TYPE.COLUMN_CLUSTERED, *BOX, data).chart
    chart.has_title = True
    chart.chart_title.text_frame.text = "Ferries by port"
    assert text_of(saved_slides(presentation), "a.pptx").split("\n")[:4] == [
        "Ferries by port",
        "Ferries",
        "Skarvik",
        "Gråholm",
    ]


def test_more_slides_than_allowed_are_refused_with_both_numbers():
    message = refusal(slides("a", "b", "c"), "a.pptx", ReaderSettings(max_pages=2)).message
    assert "3 slides" in message
    assert "at most 2" in message


def test_a_presentation_without_a_word_is_refused():
    assert "no text" in refusal(slides(""), "a.pptx").message


def test_a_slide_that_is_missing_is_damage():
    members = members_of(slides("Lamps"))
    del members["ppt/slides/slide1.xml"]
    assert "damaged" in refusal(packed(members), "a.pptx").message
