from __future__ import annotations

import docx
from docx.enum.style import WD_STYLE_TYPE

from rag.settings import ReaderSettings
from tests.documents_made import members_of, packed, paragraph, run, saved_word, word, word_of
from tests.rag.readers.reading import read, refusal, text_of


def test_a_document_is_parted_at_its_headings():
    document = docx.Document()
    document.add_paragraph("Before all.")
    document.add_heading("Lamps", 1)
    document.add_paragraph("They burn oil.")
    document.add_heading("Bells", 3)
    document.add_paragraph("They ring.")
    assert [(section.heading, section.text) for section in read(saved_word(document), "a.docx")] == [
        (None, "Before all."),
        ("Lamps", "Lamps\n\nThey burn oil."),
        ("Bells", "Bells\n\nThey ring."),
    ]


def test_a_style_that_is_based_on_a_heading_makes_headings_and_one_based_on_itself_no_loop():
    document = docx.Document()
    chapter = document.styles.add_style("Kapitel", WD_STYLE_TYPE.PARAGRAPH)
    chapter.base_style = document.styles["Heading 2"]
    ring = document.styles.add_style("Ring", WD_STYLE_TYPE.PARAGRAPH)
    ring.base_style = ring
    document.add_paragraph("Leuchttürme", style=chapter)
    document.add_paragraph("Sie leuchten.", style=ring)
    (section,) = read(saved_word(document), "a.docx")
    assert section.heading == "Leuchttürme"


def test_rows_of_tables_are_lines_with_merged_cells_once():
    document = docx.Document()
    document.add_paragraph("Tides")
    table = document.add_table(3, 2)
    for row, values in zip(table.rows, [("Port", "Time"), ("Skarvik", "nine"), ("", "ten")], strict=True):
        for cell, value in zip(row.cells, values, strict=True):
            cell.text = value
    table.cell(1, 0).merge(table.cell(2, 0))
    document.add_paragraph("After.")
    assert text_of(saved_word(document), "a.docx") == "Tides\n\nPort | Time\nSkarvik | nine\n| ten\n\nAfter."


def test_a_table_of_one_cell_is_a_frame_around_headings_and_paragraphs():
    document = docx.Document()
    cell = document.add_table(1, 1).cell(0, 0)
    cell.paragraphs[0].text = "First."
    cell.add_paragraph("Second.", style="Heading 1")
    cell.add_paragraph("Third.")
    sections = read(saved_word(document), "a.docx")
    assert [section.text for section in sections] == ["First.", "Second.\n\nThird."]


def test_tables_within_cells_keep_their_words():
    document = docx.Document()
    outer = document.add_table(1, 2)
    outer.cell(0, 0).text = "outer"
    inner = outer.cell(0, 1).add_table(1, 2)
    inner.cell(0, 0).text, inner.cell(0, 1).text = "left", "right"
    assert text_of(saved_word(document), "a.docx") == "outer | left right"


def test_heads_feet_and_notes_come_last_and_page_numbers_not_at_all():
    document = docx.Document()
    document.add_paragraph("The text.")
    document.sections[0].header.paragraphs[0].text = "Harbour office"
    document.sections[0].footer.paragraphs[0].text = "17"
    members = members_of(saved_word(document))
    notes = '<w:footnotes xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main">'
    members["word/footnotes.xml"] = f"{notes}<w:footnote>{paragraph('A note.')}</w:footnote></w:footnotes>".encode()
    members["[Content_Types].xml"] = members["[Content_Types].xml"].replace(
        b"</Types>",
        b'<Override PartName="/word/footnotes.xml" ContentType="application/vnd.openxmlformats-officedocument.'
        b'wordprocessingml.footnotes+xml"/></Types>',
    )
    members["word/_rels/document.xml.rels"] = members["word/_rels/document.xml.rels"].replace(
        b"</Relationships>",
        b'<Relationship Id="rId99" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/footnotes"'
        b' Target="footnotes.xml"/></Relationships>',
    )
    sections = read(packed(members), "a.docx")
    assert [section.text for section in sections] == ["The text.", "A note.\n\nHarbour office"]


def test_links_fields_breaks_and_formulas_show_their_words():
    body = (
        f"<w:p>{run('See ')}<w:hyperlink>{run('the chart')}</w:hyperlink><w:r><w:tab/><w:t>now</w:t><w:br/></w:r>"
        f"<w:fldSimple><w:r><w:instrText>PAGE</w:instrText></w:r>{run('seven')}</w:fldSimple>"
        "<m:oMath><m:r><m:t>a+b</m:t></m:r></m:oMath></w:p>"
    )
    assert text_of(word_of(body), "a.docx") == "See the chart\tnow\nsevena+b"


def test_what_is_deleted_is_gone_and_what_is_inserted_is_there():
    deleted = "<w:del><w:r><w:delText>old</w:delText></w:r></w:del><w:moveFrom><w:r><w:t>moved</w:t></w:r></w:moveFrom>"
    body = f"<w:p>{deleted}<w:ins>{run('new')}</w:ins></w:p><w:ins>{paragraph('whole')}</w:ins>"
    assert text_of(word_of(body), "a.docx") == "new\n\nwhole"


def test_text_boxes_and_controls_are_read_once():
    box = f"<w:txbxContent>{paragraph('In a box.')}</w:txbxContent>"
    drawn = f"<mc:Choice>{box}</mc:Choice><mc:Fallback><w:pict><v:textbox>{box}</v:textbox></w:pict></mc:Fallback>"
    control = f"<w:sdt><w:sdtContent>{paragraph('In a control.')}</w:sdtContent></w:sdt>"
    body = f"<w:p>{run('Before.')}<w:r><mc:AlternateContent>{drawn}</mc:AlternateContent></w:r></w:p>{control}"
    assert text_of(word_of(body), "a.docx") == "Before.\n\nIn a box.\n\nIn a control."


def test_deep_nesting_is_refused():
    deep = "<w:tbl><w:tr><w:tc>" * 3000 + paragraph("bottom") + "</w:tc></w:tr></w:tbl>" * 3000
    assert refusal(word_of(deep), "a.docx")


def test_more_text_than_allowed_is_refused_with_the_limit():
    assert "more than 20 " in refusal(word("x" * 15, "y" * 15), "a.docx", ReaderSettings(max_characters=20)).message
