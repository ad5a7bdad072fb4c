"""Retrieval quality: rankings of documents against relevance judgments."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import ir_measures
from ir_measures import R, nDCG

MEASURES = (nDCG @ 10, R @ 100)


@dataclass(frozen=True, slots=True)
class Document:
    """A document of a collection."""

    id: str
    title: str
    text: str

    @property
    def full_text(self) -> str:
        """Title and text, as is customary for these collections."""
        return f"{self.title} {self.text}".strip()


@dataclass(frozen=True, slots=True)
class Collection:
    """Documents, queries by id, and for each query the relevant documents' grades."""

    name: str
    documents: tuple[Document, ...]
    queries: Mapping[str, str]
    judgments: Mapping[str, Mapping[str, int]]


def load_collection(folder: Path) -> Collection:
    """A folder in BEIR's layout: `corpus.jsonl`, `queries.jsonl` (or `.gz`), `qrels/test.tsv`."""
    documents = tuple(Document(row["_id"], row.get("title", ""), row["text"]) for row in _rows(folder / "corpus.jsonl"))
    judgments: dict[str, dict[str, int]] = {}
    for line in list(_lines(folder / "qrels" / "test.tsv"))[1:]:
        query, document, grade = line.rstrip("\n").split("\t")
        judgments.setdefault(query, {})[document] = int(grade)
    queries = {row["_id"]: row["text"] for row in _rows(folder / "queries.jsonl") if row["_id"] in judgments}
    return Collection(folder.name, documents, queries, judgments)


def best_by_document(ranking: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Chunks to documents: each document once, with the score of its best chunk."""
    best: dict[str, float] = {}
    for document, score in ranking:
        best[document] = max(score, best.get(document, score))
    return best


def measure(
    judgments: Mapping[str, Mapping[str, int]], runs: Mapping[str, Sequence[tuple[str, float]]]
) -> dict[str, float]:
    """nDCG@10 and recall@100, averaged over the judged queries. A query without an answer counts as zero.

    `runs` has for each query the ranked (document, score) pairs, several per document allowed.
    """
    run = {query: best_by_document(runs.get(query, ())) for query in judgments}
    found = ir_measures.calc_aggregate(
        list(MEASURES), {query: dict(grades) for query, grades in judgments.items()}, run
    )
    return {str(name): float(value) for name, value in found.items()}


def _rows(path: Path) -> Iterator[dict[str, str]]:
    return (json.loads(line) for line in _lines(path))


def _lines(path: Path) -> Iterator[str]:
    packed = path.with_name(path.name + ".gz")
    if packed.exists():
        with gzip.open(packed, "rt", encoding="utf-8") as lines:
            yield from lines
    else:
        with path.open(encoding="utf-8") as lines:
            yield from lines
