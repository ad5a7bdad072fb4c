"""The rows that models give: finite numbers, and vectors of unit length."""

from __future__ import annotations

from typing import cast

import numpy as np

from rag.errors import ModelFailed
from rag.types import Float32

# What a forward pass gives for one item: arrays of numbers that must all be finite.
Row = tuple[Float32, ...]


def is_finite(row: Row) -> bool:
    """Whether every number of the row is one."""
    return all(bool(np.isfinite(part).all()) for part in row)


def require_finite(row: Row) -> None:
    """Raises ModelFailed where a number is not finite."""
    if not is_finite(row):
        raise ModelFailed("The model gave numbers that are not finite for this text.")


def unit_rows(vectors: Float32) -> Float32:
    """The vectors, float32 (n, dimension), at unit length. One of length zero has no direction and becomes NaN."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return cast("Float32", vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def sigmoid(logits: Float32) -> Float32:
    """float32 (n,) in [0, 1], without overflow."""
    return cast("Float32", np.exp(-np.logaddexp(np.float32(0), -logits)))
