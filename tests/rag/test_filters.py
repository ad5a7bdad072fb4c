"""Filters: what they mean, how they are parsed, and the limits of attributes."""

from __future__ import annotations

import pytest

from rag.errors import InvalidRequest
from rag.filters import MAX_DEPTH, Comparison, Compound, check_attributes, matches, parse_filter


def comparison(op: str, key: str, value: object) -> dict[str, object]:
    return {"type": op, "key": key, "value": value}


FLAGS = {"true": True, "one": 1, "text true": "true", "text one": "1", "false": False}


@pytest.mark.parametrize(
    ("op", "value", "expected"),
    [
        ("eq", True, {"true"}),
        ("eq", 1, {"one"}),
        ("eq", 1.0, {"one"}),
        ("eq", "true", {"text true"}),
        ("eq", "1", {"text one"}),
        ("eq", False, {"false"}),
        ("in", [1, "true"], {"one", "text true"}),
        ("in", [], set()),
        ("nin", [], set(FLAGS)),
        ("gt", 0, {"one"}),
        ("gte", "1", {"text true", "text one"}),
        ("lt", True, {"false"}),
    ],
)
def test_bool_number_and_text_never_meet(op: str, value: object, expected: set[str]) -> None:
    where = parse_filter(comparison(op, "flag", value))
    assert {name for name, flag in FLAGS.items() if matches(where, {"flag": flag})} == expected


COLOURS: dict[str, dict[str, str | bool | int | float]] = {
    "red": {"colour": "red"},
    "blue": {"colour": "blue"},
    "seven": {"colour": 7},
    "none": {},
}


@pytest.mark.parametrize(
    ("op", "value", "expected"),
    [
        ("ne", "red", {"blue", "seven", "none"}),
        ("nin", ["red", "blue"], {"seven", "none"}),
        ("eq", "red", {"red"}),
        ("gt", "a", {"red", "blue"}),
        ("lt", 8, {"seven"}),
    ],
)
def test_a_missing_key_matches_only_the_negations(op: str, value: object, expected: set[str]) -> None:
    where = parse_filter(comparison(op, "colour", value))
    assert {name for name, attributes in COLOURS.items() if matches(where, attributes)} == expected


def test_integers_beyond_the_range_of_floats_compare_exactly() -> None:
    assert not matches(Comparison("n", "eq", 2**53 + 1), {"n": float(2**53)})
    assert matches(Comparison("n", "lt", 10**400), {"n": 1.7e308})
    assert matches(Comparison("n", "gt", -(10**400)), {"n": -1.7e308})


def test_compound_filters_nest() -> None:
    where = parse_filter(
        {
            "type": "and",
            "filters": [
                comparison("gte", "year", 2020),
                {"type": "or", "filters": [comparison("eq", "team", "sea"), comparison("eq", "team", "land")]},
            ],
        }
    )
    assert where == Compound(
        "and",
        (
            Comparison("year", "gte", 2020),
            Compound("or", (Comparison("team", "eq", "sea"), Comparison("team", "eq", "land"))),
        ),
    )
    assert matches(where, {"year": 2021.5, "team": "land"})
    assert not matches(where, {"year": 2019, "team": "land"})
    assert not matches(where, {"year": 2021, "team": "air"})


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        ("team", "filters"),
        ({"type": "like", "key": "a", "value": "b"}, "filters.type"),
        ({"type": ["eq"], "key": "a", "value": "b"}, "filters.type"),
        ({"type": "eq", "value": "b"}, "filters.key"),
        ({"type": "eq", "key": "", "value": "b"}, "filters.key"),
        ({"type": "eq", "key": "a"}, "filters.value"),
        ({"type": "eq", "key": "a", "value": None}, "filters.value"),
        ({"type": "eq", "key": "a", "value": float("nan")}, "filters.value"),
        ({"type": "eq", "key": "a", "value": ["b"]}, "filters.value"),
        ({"type": "eq", "key": "a", "value": "\ud800"}, "filters.value"),
        ({"type": "eq", "key": "\udfff", "value": 1}, "filters.key"),
        ({"type": "in", "key": "a", "value": "b"}, "filters.value"),
        ({"type": "in", "key": "a", "value": ["b", {}]}, "filters.value[1]"),
        ({"type": "in", "key": "a", "value": [0] * 1025}, "filters.value"),
        ({"type": "and", "filters": []}, "filters.filters"),
        ({"type": "or", "filters": []}, "filters.filters"),
        ({"type": "or"}, "filters.filters"),
        ({"type": "or", "filters": [{"type": "eq", "key": "a"}]}, "filters.filters[0].value"),
    ],
)
def test_a_malformed_filter_is_refused_by_the_name_of_its_part(raw: object, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_filter(raw)
    assert caught.value.param == param


def nested(levels: int) -> dict[str, object]:
    where = comparison("eq", "a", 1)
    for _ in range(levels - 1):
        where = {"type": "and", "filters": [where]}
    return where


def test_filters_nest_up_to_the_limit() -> None:
    assert matches(parse_filter(nested(MAX_DEPTH)), {"a": 1})
    with pytest.raises(InvalidRequest, match="32"):
        parse_filter(nested(MAX_DEPTH + 1))


def test_a_filter_has_at_most_a_thousand_parts() -> None:
    parts = [comparison("eq", "a", i) for i in range(1024)]
    with pytest.raises(InvalidRequest, match="1024"):
        parse_filter({"type": "or", "filters": parts})
    assert isinstance(parse_filter({"type": "or", "filters": parts[1:]}), Compound)


def test_attributes_within_the_limits_pass_unchanged() -> None:
    raw: dict[str, object] = {"k" * 64: "v" * 512, "int": 2**53, "float": 2.0, "flag": True, "négative": -(2**53)}
    checked = check_attributes(raw)
    assert checked == raw
    assert [type(value) for value in checked.values()] == [str, int, float, bool, int]
    assert check_attributes({str(i): i for i in range(16)})
    assert check_attributes(None) == {}


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        ([1], "attributes"),
        ({str(i): i for i in range(17)}, "attributes"),
        ({"k" * 65: 1}, "k" * 65),
        ({"": 1}, "attributes."),
        ({3: 1}, "3"),
        ({"\ud800": 1}, "attributes"),
        ({"text": "v" * 513}, "text"),
        ({"text": "\udc00"}, "text"),
        ({"serial": 2**53 + 1}, "serial"),
        ({"list": [1]}, "list"),
        ({"object": {}}, "object"),
        ({"null": None}, "null"),
        ({"nan": float("nan")}, "nan"),
        ({"infinite": float("inf")}, "infinite"),
    ],
)
def test_attributes_beyond_the_limits_are_refused_by_key(raw: object, named: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_attributes(raw)
    assert caught.value.param is not None
    assert caught.value.param.endswith(named)
