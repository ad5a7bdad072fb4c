"""Generations: growing, shrinking and merging never changes what a search over the same rows finds."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.dense import ExactIndex
from storage.faiss_index import FaissIndex
from storage.generations import AttachedFile, Generation, Rows, StoreIndex
from tests.storage.made import store_record, units

DIMENSION = 8


def rows(rng: np.random.Generator, first: int, attachment: int, count: int) -> Rows:
    return Rows(
        np.arange(first, first + count),
        np.full(count, attachment, np.int64),
        units(rng, count, DIMENSION).astype(np.float16),
    )


def empty(max_tail: int) -> Generation:
    nothing = Rows(np.empty(0, np.int64), np.empty(0, np.int64), np.empty((0, DIMENSION), np.float16))
    return Generation.build(nothing, {}, make_main=FaissIndex, make_tail=ExactIndex, max_tail=max_tail)


def with_rows(generation: Generation, added: Rows) -> Generation:
    attachment = int(added.attachments[0])
    return generation.with_file(attachment, AttachedFile("vs", f"file-{attachment}", "", {}), added)


@given(
    seed=st.integers(0, 2**32 - 1),
    steps=st.lists(st.sampled_from(["add", "add", "remove"]), max_size=25),
    max_tail=st.sampled_from([1, 5, 1000]),
    limit=st.integers(1, 12),
)
@settings(max_examples=80)
def test_any_history_finds_what_the_plain_index_finds_over_the_rows_that_are_left(
    seed: int, steps: list[str], max_tail: int, limit: int
) -> None:
    rng = np.random.default_rng(seed)
    generation, kept, first = empty(max_tail), dict[int, Rows](), 1
    for attachment, step in enumerate(steps):
        if step == "add":
            kept[attachment] = rows(rng, first, attachment, int(rng.integers(1, 6)))
            first += len(kept[attachment])
            generation = with_rows(generation, kept[attachment])
        elif kept:
            gone = int(rng.choice(list(kept)))
            del kept[gone]
            generation = generation.without(gone)
    ids = np.concatenate([part.ids for part in kept.values()]) if kept else np.empty(0, np.int64)
    np.testing.assert_array_equal(np.sort(generation.ids), ids)
    assert len(generation) == len(ids)
    assert set(generation.files) == set(kept)
    chosen = np.array([key for key in kept if rng.random() < 0.5], np.int64)
    for attachments in (None, chosen):
        parts = [part for key, part in kept.items() if attachments is None or key in attachments]
        query = units(rng, 1, DIMENSION)
        found = [scored.chunk_id for scored in generation.search(query, limit, attachments)]
        if not parts:
            assert found == []
            continue
        _, expected = ExactIndex(np.concatenate([part.vectors for part in parts])).search(query, limit)
        assert found == np.concatenate([part.ids for part in parts])[expected[0]].tolist()


def test_deleted_rows_are_dropped_for_good_when_there_are_many() -> None:
    rng = np.random.default_rng(1)
    generation = empty(max_tail=4)
    for attachment in range(20):
        generation = with_rows(generation, rows(rng, 10 * attachment, attachment, 3))
    for attachment in range(12):
        generation = generation.without(attachment)
    assert len(generation) == 24
    assert generation.dead <= max(4, 0.25 * 24)


def test_a_reader_keeps_the_generation_it_began_with() -> None:
    rng = np.random.default_rng(2)
    before = with_rows(empty(max_tail=100), rows(rng, 1, 1, 5))
    after = with_rows(before.without(1), rows(rng, 6, 2, 5))
    query = units(rng, 1, DIMENSION)
    assert sorted(scored.chunk_id for scored in before.search(query, 10, None)) == [1, 2, 3, 4, 5]
    assert sorted(scored.chunk_id for scored in after.search(query, 10, None)) == [6, 7, 8, 9, 10]


def test_several_queries_give_each_chunk_once_with_its_best_query() -> None:
    vectors = np.eye(DIMENSION, dtype=np.float16)[:3]
    generation = with_rows(empty(max_tail=100), Rows(np.array([7, 8, 9]), np.zeros(3, np.int64), vectors))
    queries = np.array([[0.9, 0.1, 0, 0, 0, 0, 0, 0], [0.2, 0.8, 0.5, 0, 0, 0, 0, 0]], np.float32)
    found = generation.search(queries, 3, None)
    assert [(scored.chunk_id, scored.query_index) for scored in found] == [(7, 0), (8, 1), (9, 1)]
    np.testing.assert_allclose([scored.score for scored in found], [0.9, 0.8, 0.5], atol=1e-6)


def test_changes_made_while_an_index_is_loaded_are_part_of_it() -> None:
    rng = np.random.default_rng(3)
    index = StoreIndex(store_record())
    index.begin_loading()
    loaded = with_rows(empty(max_tail=100), rows(rng, 1, 1, 3))
    index.apply(lambda generation: generation.without(1))
    index.apply(lambda generation: with_rows(generation, rows(rng, 4, 2, 2)))
    index.install(loaded)
    assert index.generation is not None
    assert index.generation.ids.tolist() == [4, 5]


def test_a_change_that_fails_leaves_the_index_to_be_loaded_again() -> None:
    index = StoreIndex(store_record())
    index.begin_loading()
    index.install(empty(max_tail=100))

    def fail(_: Generation) -> Generation:
        raise MemoryError

    try:
        index.apply(fail)
    except MemoryError:
        assert index.generation is None
