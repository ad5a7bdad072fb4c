"""Retrieval quality of what the engines give: int8 ONNX against the same weights in float32."""

from __future__ import annotations

import numpy as np
import pytest

from rag.batching import plan_batches
from rag.evaluation import load_collection, measure
from rag.models.registry import load_embedder
from rag.types import Kind
from tests.collections import DATA, needs_data

pytestmark = [pytest.mark.models, needs_data]

# So few documents, and only their beginnings, take a minute on two cores; all of them take half an hour.
DOCUMENTS = 450
WINDOW = 96


def encode(model, texts, kind):
    sequences = [model.truncate(ids) for ids in model.tokenize(texts, kind)]
    dense = np.empty((len(texts), model.info.dimension), np.float32)
    for batch in plan_batches([len(ids) for ids in sequences], model.max_batch_tokens):
        dense[batch] = model.encode([sequences[index] for index in batch]).dense
    return dense


def test_int8_ranks_as_well_as_float32(packaged):
    collection = load_collection(DATA / "scifact")
    relevant = {document for grades in collection.judgments.values() for document in grades}
    others = [document.id for document in collection.documents if document.id not in relevant]
    drawn = set(np.random.default_rng(0).permutation(others)[: DOCUMENTS - len(relevant)])
    documents = [document for document in collection.documents if document.id in relevant | drawn]
    assert len(documents) == DOCUMENTS

    quality = {}
    for engine in ("onnx", "torch"):
        model = load_embedder(packaged("bge-small-en-v1.5", engine=engine, max_tokens=WINDOW), device="cpu")
        passages = encode(model, [document.full_text for document in documents], Kind.PASSAGE)
        queries = encode(model, list(collection.queries.values()), Kind.QUERY)
        scores = queries @ passages.T
        runs = {
            query: [(documents[place].id, float(row[place])) for place in np.argsort(-row)[:100]]
            for query, row in zip(collection.queries, scores, strict=True)
        }
        quality[engine] = measure(collection.judgments, runs)["nDCG@10"]
    print(f"\nnDCG@10 over {DOCUMENTS} beginnings of SciFact documents: {quality}")
    assert quality["torch"] > 0.5
    assert abs(quality["onnx"] - quality["torch"]) <= 0.01
