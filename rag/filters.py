"""Filters on attributes: typed nodes, the parser of OpenAI's form, and the plain evaluator.

`matches` is the meaning; every compiled form is tested against it.

- A comparison across types is never true: `True`, `1`, `"1"` and `"true"` are four values, `1` equals `1.0`.
- A file without the key matches `ne` and `nin`, and no other operator.
- `in []` matches nothing, `nin []` everything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rag.errors import InvalidRequest
from rag.types import Attributes, AttributeValue

MAX_DEPTH = 32
MAX_NODES = 1024
COMPARISONS = ("eq", "ne", "gt", "gte", "lt", "lte", "in", "nin")
COMPOUNDS = ("and", "or")

MAX_ATTRIBUTES = 16
MAX_KEY_LENGTH = 64
MAX_TEXT_LENGTH = 512
MAX_SAFE_INTEGER = 2**53


@dataclass(frozen=True, slots=True)
class Comparison:
    """`key op value`; `value` is a tuple for `in` and `nin`."""

    key: str
    op: str
    value: AttributeValue | tuple[AttributeValue, ...]


@dataclass(frozen=True, slots=True)
class Compound:
    """`and` or `or` over at least one filter."""

    op: str
    filters: tuple[Filter, ...]


Filter = Comparison | Compound


# --- meaning --------------------------------------------------------------------------------------------------------


def type_name(value: AttributeValue) -> str:
    """The class within which values compare: `bool`, `number` or `text`."""
    if isinstance(value, bool):
        return "bool"
    return "text" if isinstance(value, str) else "number"


def same(left: AttributeValue, right: AttributeValue) -> bool:
    """Equality without coercion between types."""
    return type_name(left) == type_name(right) and left == right


_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "gt": lambda left, right: left > right,
    "gte": lambda left, right: left >= right,
    "lt": lambda left, right: left < right,
    "lte": lambda left, right: left <= right,
}


def matches(where: Filter, attributes: Attributes) -> bool:
    """Whether a file with these attributes passes; the reference for every compiled form."""
    if isinstance(where, Compound):
        results = (matches(part, attributes) for part in where.filters)
        return all(results) if where.op == "and" else any(results)
    found = attributes.get(where.key)
    if isinstance(where.value, tuple):
        included = found is not None and any(same(found, value) for value in where.value)
        return included if where.op == "in" else not included
    if where.op in ("eq", "ne"):
        equal = found is not None and same(found, where.value)
        return equal if where.op == "eq" else not equal
    return found is not None and type_name(found) == type_name(where.value) and _ORDER[where.op](found, where.value)


# --- parsing --------------------------------------------------------------------------------------------------------


def parse_filter(raw: object, param: str = "filters") -> Filter:
    """OpenAI's JSON form to typed nodes.

    Raises:
        InvalidRequest: unknown operator, missing member, wrong type, an empty `and`/`or`, or deeper than 32 levels.
    """
    budget = [MAX_NODES]
    return _parse(raw, param, 1, budget)


def _parse(raw: object, param: str, depth: int, budget: list[int]) -> Filter:
    if depth > MAX_DEPTH:
        raise _invalid(f"Filters may nest at most {MAX_DEPTH} levels deep.", param)
    budget[0] -= 1
    if budget[0] < 0:
        raise _invalid(f"A filter may have at most {MAX_NODES} parts.", param)
    if not isinstance(raw, Mapping):
        raise _invalid("Expected a filter object such as {'type': 'eq', 'key': 'team', 'value': 'people'}.", param)
    op = raw.get("type")
    if not isinstance(op, str) or op not in COMPARISONS + COMPOUNDS:
        expected = ", ".join(COMPARISONS + COMPOUNDS)
        raise _invalid(f"Unknown filter type {op!r}. Expected one of: {expected}.", f"{param}.type")
    if op in COMPOUNDS:
        parts = raw.get("filters")
        if not isinstance(parts, Sequence) or isinstance(parts, str) or not parts:
            raise _invalid(f"'{op}' needs a non-empty list of filters.", f"{param}.filters")
        parsed = tuple(_parse(part, f"{param}.filters[{i}]", depth + 1, budget) for i, part in enumerate(parts))
        return Compound(op, parsed)
    return _parse_comparison(raw, op, param)


def _parse_comparison(raw: Mapping[str, object], op: str, param: str) -> Comparison:
    key = raw.get("key")
    if not isinstance(key, str) or not key:
        raise _invalid(f"'{op}' needs a non-empty string 'key'.", f"{param}.key")
    _unicode(key, f"{param}.key")
    if "value" not in raw:
        raise _invalid(f"'{op}' needs a 'value'.", f"{param}.value")
    value = raw["value"]
    if op in ("in", "nin"):
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise _invalid(f"'{op}' needs a list of values.", f"{param}.value")
        if len(value) > MAX_NODES:
            raise _invalid(f"'{op}' takes at most {MAX_NODES} values.", f"{param}.value")
        return Comparison(key, op, tuple(_scalar(item, f"{param}.value[{i}]") for i, item in enumerate(value)))
    return Comparison(key, op, _scalar(value, f"{param}.value"))


def _scalar(value: object, param: str) -> AttributeValue:
    if isinstance(value, str):
        return _unicode(value, param)
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise _invalid("Expected a string, a finite number or a boolean.", param)


def _unicode(text: str, param: str) -> str:
    """`text`, unless it holds half of a surrogate pair, which JSON can spell but no database can keep."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _invalid(f"{text!r} is not valid Unicode.", param) from error
    return text


def check_attributes(raw: object, param: str = "attributes") -> dict[str, AttributeValue]:
    """A map of attributes as a caller sent it, within OpenAI's limits; None gives an empty map.

    Raises:
        InvalidRequest: naming the key.
    """
    if raw is None:
        return {}
    if not isinstance(raw, Mapping):
        raise _invalid("Expected an object of attribute names and values.", param)
    if len(raw) > MAX_ATTRIBUTES:
        message = f"A file has at most {MAX_ATTRIBUTES} attributes; got {len(raw)}."
        raise InvalidRequest(message, param, "object_above_max_properties")
    return {_key(key, param): _attribute(key, value, param) for key, value in raw.items()}


def _key(key: object, param: str) -> str:
    message = f"Attribute names have 1 to {MAX_KEY_LENGTH} characters; got {key!r}."
    if not isinstance(key, str) or not key:
        raise _invalid(message, f"{param}.{key}")
    if len(_unicode(key, param)) > MAX_KEY_LENGTH:
        raise InvalidRequest(message, f"{param}.{key}", "string_above_max_length")
    return key


def _attribute(key: str, value: object, param: str) -> AttributeValue:
    where = f"{param}.{key}"
    if isinstance(value, str) and len(value) > MAX_TEXT_LENGTH:
        message = f"The value of '{key}' has {len(value)} characters; at most {MAX_TEXT_LENGTH}."
        raise InvalidRequest(message, where, "string_above_max_length")
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > MAX_SAFE_INTEGER:
        raise _invalid(f"The value of '{key}' is beyond 2^53; send it as a string.", where)
    if value is None or not isinstance(value, str | bool | int | float):
        raise _invalid(f"The value of '{key}' must be a string, a number or a boolean.", where)
    return _scalar(value, where)


def _invalid(message: str, param: str) -> InvalidRequest:
    return InvalidRequest(message, param, "invalid_value")
