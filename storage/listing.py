"""Tables as lists that are read page by page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rag.errors import InvalidRequest
from rag.types import Page, PageRequest
from storage.database import Cursor, first

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """A table as a list sorted by creation time, then id: `scope` says which rows belong to it."""

    table: str
    columns: str
    id_column: str
    scope: str
    scope_values: tuple[str, ...]
    read: Callable[[Row], Any]

    def page(self, cursor: Cursor, request: PageRequest, column: str = "", value: str | None = None) -> Page[Any]:
        """The page, of rows where `column` has `value` unless that is None.

        Raises:
            InvalidRequest: an unknown cursor.
        """
        descending = request.order == "desc"
        backward = request.before is not None and request.after is None
        conditions, values = [self.scope], list[object](self.scope_values)
        if value is not None:
            conditions.append(f"{column} = ?")
            values.append(value)
        for name, item, later in (("after", request.after, not descending), ("before", request.before, descending)):
            if item is not None:
                conditions.append(f"(created_at, {self.id_column}) {'>' if later else '<'} (?, ?)")
                values += [self._created_at(cursor, item, name), item]
        direction = "desc" if descending != backward else "asc"
        rows = cursor.execute(
            f"select {self.columns} from {self.table} where {' and '.join(conditions)} "
            f"order by created_at {direction}, {self.id_column} {direction} limit ?",
            [*values, request.limit + 1],
        ).fetchall()
        items = [self.read(row) for row in rows[: request.limit]]
        return Page(tuple(reversed(items) if backward else items), len(rows) > request.limit)

    def _created_at(self, cursor: Cursor, item: str, param: str) -> int:
        row = first(
            cursor,
            f"select created_at from {self.table} where {self.scope} and {self.id_column} = ?",
            [*self.scope_values, item],
        )
        if row is None:
            raise InvalidRequest(
                f"Unknown cursor '{item}': there is no such item in this list.", param, "invalid_value"
            )
        return int(row[0])
