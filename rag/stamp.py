"""Whether a vector store may be searched: not expired, and filled with the model that is served."""

from __future__ import annotations

from rag.errors import InvalidRequest, ModelMismatch
from rag.types import ModelInfo, VectorStoreRecord


def check_searchable(record: VectorStoreRecord, served: ModelInfo, now: float) -> None:
    """`now` in Unix seconds.

    Raises:
        InvalidRequest: the store has expired.
        ModelMismatch: it was filled with another model, revision or dimension; both are named.
    """
    if record.expires_at is not None and record.expires_at <= now:
        message = f"The vector store '{record.id}' has expired: it was not used for {record.expires_after_days} days."
        raise InvalidRequest(message, "vector_store_id", "vector_store_expired")
    if not is_same_model(record.model, served):
        raise ModelMismatch(
            f"The vector store '{record.id}' was filled with {_name(record.model)}, but {_name(served)} is served. "
            "Serve that model again, or stop the service and run 'florilegium reembed'.",
            "vector_store_id",
            "model_mismatch",
        )


def is_same_model(one: ModelInfo, other: ModelInfo) -> bool:
    """Whether vectors of both may be compared."""
    return (one.id, one.revision, one.dimension) == (other.id, other.revision, other.dimension)


def _name(info: ModelInfo) -> str:
    return f"'{info.id}' (revision {info.revision}, {info.dimension} dimensions)"
