"""FAISS finds what the plain index finds, whatever the filter leaves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.dense import ExactIndex
from storage.faiss_index import FaissIndex
from tests.storage.made import units

COUNT, DIMENSION = 3_000, 64


@pytest.fixture(scope="module")
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.mark.parametrize("share", [None, 0.5, 0.05, 0.005, 0.0])
@pytest.mark.parametrize("limit", [1, 10, 50])
def test_rows_and_scores_equal_those_of_the_plain_index(
    rng: np.random.Generator, share: float | None, limit: int
) -> None:
    vectors = units(rng, COUNT, DIMENSION).astype(np.float16)
    queries = units(rng, 5, DIMENSION)
    allowed = None if share is None else rng.random(COUNT) < share
    scores, rows = FaissIndex(vectors).search(queries, limit, allowed)
    expected_scores, expected_rows = ExactIndex(vectors).search(queries, limit, allowed)
    np.testing.assert_array_equal(rows, expected_rows)
    np.testing.assert_allclose(scores, expected_scores, atol=1e-5)
    assert rows.shape == (5, min(limit, COUNT if allowed is None else int(allowed.sum())))


@given(seed=st.integers(0, 2**32 - 1), limit=st.integers(1, 60), share=st.sampled_from([None, 0.1, 0.9]))
@settings(max_examples=60)
def test_among_equal_scores_the_first_rows_win(seed: int, limit: int, share: float | None) -> None:
    rng = np.random.default_rng(seed)
    distinct = units(rng, 4, 8).astype(np.float16)
    vectors = distinct[rng.integers(0, 4, 400)]
    allowed = None if share is None else rng.random(400) < share
    queries = units(rng, 2, 8)
    _, rows = FaissIndex(vectors).search(queries, limit, allowed)
    _, expected = ExactIndex(vectors).search(queries, limit, allowed)
    np.testing.assert_array_equal(rows, expected)


def test_an_empty_index_finds_nothing() -> None:
    index = FaissIndex(np.empty((0, 8), np.float16))
    scores, rows = index.search(np.ones((2, 8), np.float32), 10)
    assert scores.shape == rows.shape == (2, 0)


def test_the_half_floats_come_back_as_they_went_in(rng: np.random.Generator) -> None:
    vectors = units(rng, 100, 24).astype(np.float16)
    chosen = rng.random(100) < 0.5
    np.testing.assert_array_equal(FaissIndex(vectors).take(chosen), vectors[chosen])
