"""Forward passes that come to an answer: less at once where memory runs out, float32 where half is not enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from rag.errors import ModelFailed
from rag.models.rows import Row, is_finite, require_finite

T = TypeVar("T")

Forward = Callable[[Sequence[T], torch.dtype], list[Row]]


def finite_rows(forward: Forward[T], batch: Sequence[T], dtype: torch.dtype) -> list[Row]:
    """One row per item. An item whose row is not finite is run again, alone and in float32, where `dtype` is half.

    Raises:
        ModelFailed: a row is not finite even so, or a single item is too much for the memory.
    """
    rows = _halving(forward, batch, dtype)
    for index, row in enumerate(rows):
        if not is_finite(row):
            if dtype != torch.float32:
                rows[index] = _halving(forward, [batch[index]], torch.float32)[0]
            require_finite(rows[index])
    return rows


def _halving(forward: Forward[T], batch: Sequence[T], dtype: torch.dtype) -> list[Row]:
    try:
        return forward(batch, dtype)
    except torch.OutOfMemoryError as error:
        if len(batch) == 1:
            raise ModelFailed("The device's memory does not suffice for one text.") from error
    # Outside of the handler: while it runs, the error's frames keep the tensors alive.
    torch.cuda.empty_cache()
    middle = len(batch) // 2
    return _halving(forward, batch[:middle], dtype) + _halving(forward, batch[middle:], dtype)
