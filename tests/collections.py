"""The sample documents and collections that lie beside the repository, and how their answers are compared."""

from __future__ import annotations

import csv
import json
import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path

import pytest

DATA = Path(__file__).parents[2] / "shared" / "data"
DOCUMENTS = DATA / "documents"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the folder with the sample data is absent")

_BIDI = re.compile("[\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_NO_BLANKS = re.compile("[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff]")


@dataclass(frozen=True, slots=True)
class Sample:
    """A document and the outcome that its reading must have."""

    file: str
    outcome: str
    expected: tuple[str, ...]

    @property
    def path(self) -> Path:
        return DOCUMENTS / self.file


@dataclass(frozen=True, slots=True)
class Question:
    """A question that one document answers, with any of the strings that will do."""

    file: str
    text: str
    answers: tuple[str, ...]

    @property
    def english(self) -> bool:
        return not re.search(r"xquad-(?!en)|jsquad", self.file)


def samples() -> list[Sample]:
    """All sample documents."""
    with (DOCUMENTS / "MANIFEST.tsv").open(encoding="utf-8", newline="") as rows:
        found = csv.DictReader(rows, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [
            Sample(row["file"], row["outcome"], tuple(part.strip() for part in row["expected"].split(" | ")))
            for row in found
        ]


def questions() -> list[Question]:
    """All questions on sample documents."""
    lines = (DOCUMENTS / "QUESTIONS.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [Question(r["file"], r["text"], tuple(r["answers"])) for r in rows]


def comparable(text: str) -> str:
    """Text as answers are compared: NFKC, no bidirectional marks, white space folded, and gone where a script that
    parts no words is at work."""
    text = _BIDI.sub("", unicodedata.normalize("NFKC", text))
    return "".join(text.split()) if _NO_BLANKS.search(text) else " ".join(text.split())


def holds(text: str, answers: tuple[str, ...]) -> bool:
    """Whether one of the answers stands in the text, whatever its blanks."""
    blankless = "".join(comparable(text).split()).casefold()
    return any("".join(comparable(answer).split()).casefold() in blankless for answer in answers)
