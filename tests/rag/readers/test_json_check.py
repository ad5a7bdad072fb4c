from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag.readers.json_check import MAX_DEPTH, JsonCheck

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def check(data: bytes, step: int = 1 << 20) -> None:
    looking = JsonCheck()
    for start in range(0, len(data), step):
        looking.feed(data[start : start + step])
    looking.close()


@given(VALUES, st.integers(1, 9), st.booleans())
def test_any_value_passes_in_any_pieces_and_no_part_of_it_does(value, step, ascii_only):
    data = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    check(data, step)
    if isinstance(value, dict | list | str):
        with pytest.raises(ValueError, match="not JSON"):
            check(data[:-1], step)


@pytest.mark.parametrize(
    "data", [b"", b" ", b"[1,]", b"{'a': 1}", b"[1] x", b"[NaN]", b"[01]", b'{"a" 1}', b"tru", b'["\xff"]', b"// x\n1"]
)
def test_what_is_no_json_is_refused(data):
    with pytest.raises(ValueError, match=r"not JSON \(.*\)\.$"):
        check(data)


def test_nesting_is_allowed_up_to_the_limit():
    check(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    check(b'{"a":' * MAX_DEPTH + b"1" + b"}" * MAX_DEPTH)
    check(b"[" + b"[]," * 1000 + b"[]]")
    for deep in (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), b"[" * 1_000_000, b'{"a":[' * 40):
        with pytest.raises(ValueError, match="64 levels"):
            check(deep)


@pytest.mark.parametrize("number", [b"9" * 6000, b"1e" + b"9" * 30])
def test_a_number_that_is_too_long_is_named(number):
    with pytest.raises(ValueError, match="number"):
        check(b"[" + number + b"]")
    check(b"[" + b"9" * 400 + b", 1e400]")
