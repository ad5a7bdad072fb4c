"""What a file is: by the end of its name, and by how it begins."""

from __future__ import annotations

MARKDOWN = frozenset([".md", ".markdown"])
HTML = frozenset([".html", ".htm", ".xhtml"])
JSON = frozenset([".json", ".ipynb"])
XML = frozenset([".xml"])
PLAIN = frozenset(
    [
        ".txt",
        ".text",
        ".log",
        ".rst",
        ".tex",
        ".csv",
        ".tsv",
        ".jsonl",
        ".ndjson",
        ".yaml",
        ".yml",
        ".toml",
        ".ini",
        ".cfg",
        ".conf",
        ".vtt",
        ".srt",
        ".css",
        ".sql",
        ".c",
        ".h",
        ".cpp",
        ".hpp",
        ".cs",
        ".go",
        ".java",
        ".js",
        ".jsx",
        ".ts",
        ".tsx",
        ".php",
        ".py",
        ".rb",
        ".rs",
        ".sh",
        ".swift",
        ".kt",
        ".scala",
        ".lua",
        ".r",
    ]
)
# Read as Unicode or not at all; a page or an XML file may declare another encoding.
UNICODE = MARKDOWN | JSON | PLAIN

# Kinds that are known by how they begin, and the archives among them.
ARCHIVES = {
    ".docx": "a Word document",
    ".pptx": "a PowerPoint presentation",
    ".xlsx": "an Excel workbook",
    ".epub": "an EPUB",
}
SIGNED = {".pdf": "a PDF", ".rtf": "an RTF document", **ARCHIVES}
# Formats of before 2007, and what to save them as.
OLD = {
    ".doc": ("a binary Word file", ".docx"),
    ".dot": ("a binary Word template", ".docx"),
    ".ppt": ("a binary PowerPoint file", ".pptx"),
    ".pps": ("a binary PowerPoint file", ".pptx"),
    ".xls": ("a binary Excel file", ".xlsx"),
}

# What a file begins with tells what it is, whatever its name says.
ZIP = "a ZIP archive or an office document"
OLE = "an old or locked office document"
RTF = "an RTF document"
_SIGNATURES = (
    (b"%PDF-", "a PDF"),
    (b"PK\x03\x04", ZIP),
    (b"PK\x05\x06", ZIP),
    (b"\x89PNG\r\n", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF87a", "a GIF image"),
    (b"GIF89a", "a GIF image"),
    (b"RIFF", "a RIFF sound, picture or film"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", OLE),
    (b"{\\rtf", RTF),
    (b"\x1f\x8b", "a gzip archive"),
    (b"BZh", "a bzip2 archive"),
    (b"\xfd7zXZ", "an XZ archive"),
    (b"7z\xbc\xaf", "a 7-Zip archive"),
    (b"Rar!\x1a", "a RAR archive"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard archive"),
    (b"\x7fELF", "a program"),
    (b"MZ\x90\x00", "a program"),
    (b"SQLite format 3\x00", "a SQLite database"),
    (b"PAR1", "a Parquet file"),
    (b"OggS", "an Ogg sound or film"),
    (b"ID3\x03", "an MP3 sound"),
    (b"ID3\x04", "an MP3 sound"),
)


def signature_of(head: bytes) -> str | None:
    """What the first bytes say for certain that the file is, in words; None for text, and where they say nothing."""
    return next((kind for signature, kind in _SIGNATURES if head.startswith(signature)), None)
