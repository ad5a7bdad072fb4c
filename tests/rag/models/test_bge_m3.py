from __future__ import annotations

import numpy as np
import pytest

from rag.errors import ModelFailed
from rag.models.registry import load_embedder
from rag.settings import ModelSettings
from rag.types import Kind
from tests.models_made import words

TEXTS = ["", "a", *(" ".join(words(count, count)) for count in (1, 7, 30, 200, 600)), "again and again and again"]


@pytest.fixture(scope="module")
def model(tiny_m3):
    return load_embedder(ModelSettings(model=str(tiny_m3)))


@pytest.fixture(scope="module")
def reference(tiny_m3):
    """What FlagEmbedding gives for TEXTS."""
    from FlagEmbedding import BGEM3FlagModel

    flag = BGEM3FlagModel(str(tiny_m3), use_fp16=False, devices="cpu")
    return flag.encode(TEXTS, batch_size=3, max_length=8192, return_dense=True, return_sparse=True)


def encode(model, texts):
    return model.encode(model.tokenize(texts, Kind.PASSAGE))


def test_dense_vectors_are_those_of_flag_embedding(model, reference):
    found = encode(model, TEXTS)
    assert (found.dense * reference["dense_vecs"]).sum(axis=1).min() >= 0.9999


def test_lexical_weights_are_those_of_flag_embedding(model, reference):
    found = encode(model, TEXTS)
    assert model.info.has_sparse
    assert len(found.sparse) == len(TEXTS)
    for sparse, expected in zip(found.sparse, reference["lexical_weights"], strict=True):
        weights = {int(token): float(weight) for token, weight in expected.items()}
        assert sparse.indices.tolist() == sorted(weights)
        assert np.abs(sparse.values - [weights[token] for token in sorted(weights)]).max(initial=0) <= 1e-4


def test_lexical_weights_are_sorted_unique_and_positive(model):
    for sparse in encode(model, TEXTS).sparse:
        assert sparse.indices.dtype == np.int32
        assert sparse.values.dtype == np.float32
        assert (np.diff(sparse.indices) > 0).all()
        assert (sparse.values > 0).all()
        assert not np.isin(sparse.indices, [0, 1, 2, 3]).any()


def test_neither_output_depends_on_the_neighbours(model):
    together = encode(model, TEXTS)
    for index, text in enumerate(TEXTS):
        alone = encode(model, [text])
        assert np.abs(together.dense[index] - alone.dense[0]).max() <= 1e-5
        assert together.sparse[index].indices.tolist() == alone.sparse[0].indices.tolist()
        assert np.abs(together.sparse[index].values - alone.sparse[0].values).max(initial=0) <= 1e-5


def test_a_text_of_8192_tokens_is_encoded_whole(model):
    [ids] = model.tokenize([" ".join(words(6000))], Kind.PASSAGE)
    found = model.encode([model.truncate(ids)])
    assert found.token_counts.tolist() == [8192] == [model.info.max_tokens]
    last_word = model.truncate(ids)[-2]
    assert last_word in ids


def test_lexical_weights_that_are_not_finite_fail(model, monkeypatch):
    spoiled = model._lexical._replace(bias=model._lexical.bias * float("nan"))
    monkeypatch.setattr(model, "_lexical", spoiled)
    with pytest.raises(ModelFailed, match="finite"):
        encode(model, ["a"])
