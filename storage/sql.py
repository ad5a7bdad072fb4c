"""Filters as SQL: typed nodes to a condition over the attribute rows of one attachment.

The statement around it joins attachments to `attributes t` and groups by attachment; the condition goes into `having`.
One aggregate per comparison keeps a filter of a thousand parts at one pass over the rows. Values and keys travel as
parameters, never as text. Text compares by code point on both sides: DuckDB by UTF-8 bytes, which is the same order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rag.filters import Comparison, Filter
from rag.types import AttributeValue

Parameters = dict[str, Any]

OPERATORS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}


def compile_filter(where: Filter) -> tuple[str, Parameters]:
    """The condition and its named parameters, which all begin with `f_`."""
    parameters: Parameters = {}
    return _compile(where, parameters), parameters


def _compile(where: Filter, parameters: Parameters) -> str:
    if isinstance(where, Comparison):
        return _comparison(where, parameters)
    return "(" + f" {where.op} ".join(_compile(part, parameters) for part in where.filters) + ")"


def _comparison(where: Comparison, parameters: Parameters) -> str:
    if isinstance(where.value, tuple):
        found = _any_row(where.key, _one_of(where.value, parameters), parameters)
    elif where.op in OPERATORS:
        found = _any_row(where.key, _ordered(where.op, where.value, parameters), parameters)
    else:
        found = _any_row(where.key, _one_of((where.value,), parameters), parameters)
    return f"not {found}" if where.op in ("ne", "nin") else found


def _any_row(key: str, condition: str, parameters: Parameters) -> str:
    """True where a row with the key satisfies the condition; false, never null, where there is no such row."""
    return f"coalesce(bool_or(t.key = {_bind(key, parameters)} and ({condition})), false)"


def _one_of(values: Sequence[AttributeValue], parameters: Parameters) -> str:
    flags = [value for value in values if isinstance(value, bool)]
    texts = [value for value in values if isinstance(value, str)]
    numbers = [_floor(value) for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    exact = [number for number, whole in numbers if whole]
    columns = (("flag", "boolean", flags), ("text", "varchar", texts), ("number", "double", exact))
    tests = [f"list_contains({_bind(some, parameters)}::{kind}[], t.{name})" for name, kind, some in columns if some]
    return " or ".join(f"coalesce({test}, false)" for test in tests) or "false"


def _ordered(op: str, value: AttributeValue, parameters: Parameters) -> str:
    if isinstance(value, bool):
        return f"t.flag {OPERATORS[op]} {_bind(value, parameters)}"
    if isinstance(value, str):
        return f"t.text {OPERATORS[op]} {_bind(value, parameters)}"
    bound, exact = _floor(value)
    if not exact:  # the value lies between `bound` and the next float, where no attribute can be
        op = "gt" if op in ("gt", "gte") else "lte"
    return f"t.number {OPERATORS[op]} {_bind(bound, parameters)}::double"


def _floor(value: int | float) -> tuple[float, bool]:
    """The greatest float that is not above `value`, and whether it equals it. Integers may be of any size."""
    try:
        nearest = float(value)
    except OverflowError:
        nearest = math.inf if value > 0 else -math.inf
    if nearest > value:
        nearest = math.nextafter(nearest, -math.inf)
    return nearest, nearest == value


def _bind(value: object, parameters: Parameters) -> str:
    name = f"f_{len(parameters)}"
    parameters[name] = value
    return f"${name}"
