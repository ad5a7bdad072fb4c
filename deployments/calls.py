"""What travels when calls share a hop, and how a group is answered: a result or an error for each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rag.errors import RagError
from rag.filters import Filter
from rag.types import Float32, Kind, ModelInfo, Priority

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class EmbedCall:
    """The arguments of `Embedder.embed`."""

    texts: tuple[str, ...]
    kind: Kind
    priority: Priority
    truncate: bool


@dataclass(frozen=True, slots=True)
class SearchCall:
    """The arguments of `VectorStores.search`."""

    owner: str
    store_id: str
    queries: Float32  # (q, dimension)
    model: ModelInfo
    limit: int
    where: Filter | None


async def answer_each(calls: Sequence[T], answer: Callable[[T], Awaitable[R]]) -> list[R | RagError]:
    """Each call's result, or the error that belongs to it alone. Any other exception fails the group: it is a bug."""

    async def one(call: T) -> R | RagError:
        try:
            return await answer(call)
        except RagError as error:
            return error

    return list(await asyncio.gather(*map(one, calls)))
