"""Compiled filters give what the plain evaluator gives, for any attributes and any filter."""

from __future__ import annotations

import json
from collections.abc import Iterator

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag.filters import Comparison, Compound, Filter, matches
from storage import catalog
from storage.database import M001, OPTIONS

KEYS = ["a", "a.b", "a[0]", "it's", 'say "hi"', "$", "*", "two words", "clé", "'; drop table chunks --", "$f_0"]
TEXTS = ["", "x", "X", "true", "1", "x' OR '1'='1", "z", "é", "Z", "\x00", "a\x00b", "\uffff", "\U0001f600", "%", "_"]

texts = st.sampled_from(TEXTS) | st.text(st.characters(exclude_categories=["Cs"]), max_size=3)
integers = st.sampled_from([0, 1, -1, 2**53, -(2**53), 2**53 - 1]) | st.integers(-(2**53), 2**53)
floats = st.sampled_from([0.0, -0.0, 1.0, 1.5, float(2**53), 1e308, 5e-324]) | st.floats(
    allow_nan=False, width=64
).filter(lambda number: abs(number) != float("inf"))
stored = st.booleans() | integers | floats | texts
asked = stored | st.sampled_from([2**53 + 1, -(2**53) - 1, 2**63, 2**64 + 1, 2**128, 10**400, -(10**400)])
keys = st.sampled_from(KEYS)
comparisons = st.one_of(
    st.builds(Comparison, keys, st.sampled_from(["eq", "ne", "gt", "gte", "lt", "lte"]), asked),
    st.builds(Comparison, keys, st.sampled_from(["in", "nin"]), st.lists(asked, max_size=4).map(tuple)),
)
filters: st.SearchStrategy[Filter] = st.recursive(
    comparisons,
    lambda parts: st.builds(
        Compound, st.sampled_from(["and", "or"]), st.lists(parts, min_size=1, max_size=3).map(tuple)
    ),
    max_leaves=6,
)
attribute_maps = st.lists(st.dictionaries(keys, stored, max_size=4), min_size=1, max_size=5)


@pytest.fixture(scope="module")
def cursor() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(config={**OPTIONS, "threads": 1}) as connection:
        connection.execute(M001)
        yield connection


def fill(cursor: duckdb.DuckDBPyConnection, files: list[dict[str, str | bool | int | float]]) -> None:
    cursor.execute("delete from attachments")
    cursor.execute("delete from attributes")
    for number, attributes in enumerate(files):
        cursor.execute(
            "insert into attachments (key, store_id, file_id, filename, status, created_at, max_chunk_size_tokens, "
            "chunk_overlap_tokens, attributes) values (?, 'vs', ?, '', 'completed', 0, 800, 400, ?)",
            [number, str(number), json.dumps(attributes)],
        )
        catalog.set_attributes(cursor, number, attributes)


@given(files=attribute_maps, where=st.lists(filters, min_size=1, max_size=4))
@settings(max_examples=150)
def test_sql_and_the_evaluator_agree(
    cursor: duckdb.DuckDBPyConnection, files: list[dict[str, str | bool | int | float]], where: list[Filter]
) -> None:
    fill(cursor, files)
    for part in where:
        found = sorted(catalog.matching(cursor, "vs", part).tolist())
        assert found == [number for number, attributes in enumerate(files) if matches(part, attributes)]


def test_each_awkward_key_finds_exactly_its_own_file(cursor: duckdb.DuckDBPyConnection) -> None:
    fill(cursor, [{key: "x"} for key in KEYS])
    for number, key in enumerate(KEYS):
        assert catalog.matching(cursor, "vs", Comparison(key, "eq", "x")).tolist() == [number]
        assert catalog.matching(cursor, "vs", Comparison(key, "eq", "x' OR '1'='1")).tolist() == []


def test_a_filter_of_a_thousand_parts_is_answered(cursor: duckdb.DuckDBPyConnection) -> None:
    fill(cursor, [{"a": 5}, {"a": 2000}, {"key 7": 7}])
    where = Compound("or", tuple(Comparison("a" if i % 2 else f"key {i}", "eq", i) for i in range(1023)))
    assert sorted(catalog.matching(cursor, "vs", where).tolist()) == [0]
    deep: Filter = Comparison("a", "eq", 5)
    for _ in range(31):
        deep = Compound("and", (deep, Comparison("missing", "ne", 1)))
    assert catalog.matching(cursor, "vs", deep).tolist() == [0]
