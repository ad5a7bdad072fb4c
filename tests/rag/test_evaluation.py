"""Measures: by hand where they go wrong elsewhere."""

from __future__ import annotations

import gzip
import json
from math import log2
from pathlib import Path

import pytest

from rag.evaluation import best_by_document, load_collection, measure


def ranked(*documents: str) -> list[tuple[str, float]]:
    return [(document, 1.0 - place / 100) for place, document in enumerate(documents)]


def test_a_document_found_twice_is_credited_once():
    assert measure({"q": {"A": 1}}, {"q": ranked("A", "A", "X")}) == pytest.approx({"nDCG@10": 1.0, "R@100": 1.0})


def test_a_repeat_does_not_stand_in_for_another_document():
    found = measure({"q": {"A": 1, "B": 1}}, {"q": ranked("A", "A")})
    assert found == pytest.approx({"nDCG@10": 1 / (1 + 1 / log2(3)), "R@100": 0.5})


def test_a_document_stands_where_its_best_chunk_stands():
    assert best_by_document([("A", 0.2), ("B", 0.9), ("A", 0.95)]) == {"A": 0.95, "B": 0.9}


def test_a_query_without_an_answer_counts_as_zero():
    found = measure({"q": {"A": 1}, "silent": {"B": 1}}, {"q": ranked("A"), "silent": []})
    assert found == pytest.approx({"nDCG@10": 0.5, "R@100": 0.5})


def test_a_collection_is_read_plain_or_packed(tmp_path: Path):
    with gzip.open(tmp_path / "corpus.jsonl.gz", "wt") as corpus:
        corpus.write(json.dumps({"_id": "d", "title": "T", "text": "body"}) + "\n")
    (tmp_path / "queries.jsonl").write_text(
        json.dumps({"_id": "q", "text": "?"}) + "\n" + json.dumps({"_id": "unjudged", "text": "?"}) + "\n"
    )
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td\t1\n")
    collection = load_collection(tmp_path)
    assert collection.documents[0].full_text == "T body"
    assert collection.queries == {"q": "?"}
    assert collection.judgments == {"q": {"d": 1}}
