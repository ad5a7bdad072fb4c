"""Dense indexes: what one is, and the plain one in NumPy that every other is tested against."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from rag.types import Float32, Int64

Float16 = npt.NDArray[np.float16]
Mask = npt.NDArray[np.bool_]


class DenseIndex(Protocol):
    """Unit vectors as rows, searched by inner product. Immutable, so any thread may search it."""

    def take(self, chosen: Mask) -> Float16:
        """A copy of the chosen rows, float16 (k, dimension), in their order; `chosen` is bool (n,)."""
        ...

    def search(self, queries: Float32, limit: int, allowed: Mask | None = None) -> tuple[Float32, Int64]:
        """The best rows for each of `queries`, float32 (q, dimension).

        `allowed`, bool (n,), says which rows may be found. Gives scores and rows, both (q, min(limit, allowed rows)),
        best first, equal scores by row.
        """
        ...


class ExactIndex:
    """Every row is scored, in double precision."""

    def __init__(self, vectors: Float16) -> None:
        self._vectors = vectors

    def take(self, chosen: Mask) -> Float16:
        return self._vectors[chosen]

    def search(self, queries: Float32, limit: int, allowed: Mask | None = None) -> tuple[Float32, Int64]:
        rows = np.arange(len(self._vectors)) if allowed is None else np.flatnonzero(allowed)
        scores = (queries.astype(np.float64) @ self._vectors[rows].T.astype(np.float64)).astype(np.float32)
        return best(scores, np.broadcast_to(rows, scores.shape), limit)


def best(scores: Float32, rows: Int64, limit: int) -> tuple[Float32, Int64]:
    """The first `limit` columns of both, (q, n) each, by falling score and rising row."""
    order = np.lexsort((rows, -scores), axis=-1)[:, :limit]
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1)
