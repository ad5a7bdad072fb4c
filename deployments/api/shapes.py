"""The shapes of answers and of nested requests, for the generated API document alone.

Routes build plain dictionaries, which are rendered as they are: nothing here is run for a request.
"""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, NotRequired, TypeVar

from fastapi import Path
from pydantic import Field
from typing_extensions import TypedDict

from rag.filters import MAX_ATTRIBUTES, MAX_KEY_LENGTH, MAX_SAFE_INTEGER, MAX_TEXT_LENGTH
from rag.inference import MAX_DOCUMENTS, MAX_INPUTS
from rag.search import MAX_QUERIES
from rag.types import ErrorCode, FileStatus
from rag.uploads import MAX_EXPIRY_S, MIN_EXPIRY_S, PURPOSES

T = TypeVar("T")

# --- parameters -----------------------------------------------------------------------------------------------------

_ID = "[A-Za-z0-9_-]"

StoreId = Annotated[str, Path(description="Of a vector store.", json_schema_extra={"pattern": f"^vs_{_ID}{{0,125}}$"})]
BatchId = Annotated[str, Path(description="Of a file batch.", json_schema_extra={"pattern": f"^vsfb_{_ID}{{0,123}}$"})]

# --- parts of requests ----------------------------------------------------------------------------------------------

_Text = Annotated[str, Field(max_length=MAX_TEXT_LENGTH)]
_Number = Annotated[float, Field(ge=-MAX_SAFE_INTEGER, le=MAX_SAFE_INTEGER)]
AttributeMap = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=MAX_KEY_LENGTH)], _Text | _Number | bool],
    Field(max_length=MAX_ATTRIBUTES),
]
NonEmpty = Annotated[str, Field(min_length=1)]
QueryShape = NonEmpty | Annotated[list[NonEmpty], Field(min_length=1, max_length=MAX_QUERIES)]
_TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
InputShape = (
    NonEmpty
    | Annotated[list[NonEmpty], Field(min_length=1, max_length=MAX_INPUTS)]
    | _TokenIds
    | Annotated[list[_TokenIds], Field(min_length=1, max_length=MAX_INPUTS)]
)


class TextDocument(TypedDict):
    """A document in Jina's form."""

    text: str


DocumentsShape = Annotated[list[str | TextDocument], Field(min_length=1, max_length=MAX_DOCUMENTS)]


class ComparisonShape(TypedDict):
    """`key` against a value."""

    type: Literal["eq", "ne", "gt", "gte", "lt", "lte"]
    key: NonEmpty
    value: str | float | bool


class MembershipShape(TypedDict):
    """`key` against several values."""

    type: Literal["in", "nin"]
    key: NonEmpty
    value: list[str | float | bool]


class CompoundShape(TypedDict):
    """All or any of several filters; at most 32 levels deep."""

    type: Literal["and", "or"]
    filters: Annotated[list[FilterShape], Field(min_length=1)]


FilterShape = ComparisonShape | MembershipShape | CompoundShape

CHUNKING_FORMS: dict[str, Any] = {
    "anyOf": [
        {"properties": {"type": {"const": "auto"}}},
        {"required": ["static"], "properties": {"static": {"type": "object"}}},
    ]
}
BATCH_FORMS: dict[str, Any] = {
    "oneOf": [
        {"required": [sent], "properties": {sent: {"type": "array"}, left_out: {"type": "null"}}}
        for sent, left_out in (("file_ids", "files"), ("files", "file_ids"))
    ]
}
UPLOAD_FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "format": "binary", "minLength": 1},
                        "purpose": {"type": "string", "enum": list(PURPOSES)},
                        "expires_after": {
                            "type": "object",
                            "description": "As JSON, or as the fields expires_after[anchor], expires_after[seconds].",
                            "required": ["anchor", "seconds"],
                            "properties": {
                                "anchor": {"type": "string", "enum": ["created_at"]},
                                "seconds": {"type": "integer", "minimum": MIN_EXPIRY_S, "maximum": MAX_EXPIRY_S},
                            },
                        },
                    },
                }
            }
        },
    }
}

# --- errors ---------------------------------------------------------------------------------------------------------


class ErrorShape(TypedDict):
    """What went wrong."""

    message: str
    type: Literal["invalid_request_error", "server_error"]
    param: str | None
    code: str | None


class ErrorAnswer(TypedDict):
    """Every answer that is no success."""

    error: ErrorShape


ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {
        "model": ErrorAnswer,
        "description": "400 bad input, 401 no key, 404 unknown, 413 too large, 429 busy (with Retry-After)",
    },
    500: {"model": ErrorAnswer, "description": "A model or the server failed on this request"},
    503: {"model": ErrorAnswer, "description": "A part is restarting; try again after Retry-After seconds"},
}

# --- answers --------------------------------------------------------------------------------------------------------


class Listing(TypedDict, Generic[T]):
    """A page of a cursor list; the cursors of an empty page are empty strings."""

    object: Literal["list"]
    data: list[T]
    first_id: str
    last_id: str
    has_more: bool


class Deleted(TypedDict):
    """What is gone."""

    id: str
    object: Literal["file", "vector_store.deleted", "vector_store.file.deleted"]
    deleted: Literal[True]


class FileShape(TypedDict):
    """An upload."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: Literal["processed"]
    sha256: str
    expires_at: NotRequired[int]


class CountsShape(TypedDict):
    """Files by status."""

    in_progress: int
    completed: int
    failed: int
    cancelled: int
    total: int


class ExpiryShape(TypedDict):
    """Days since the last use."""

    anchor: Literal["last_active_at"]
    days: int


class VectorStoreShape(TypedDict):
    """A vector store."""

    id: str
    object: Literal["vector_store"]
    created_at: int
    name: str
    description: str | None
    usage_bytes: int
    file_counts: CountsShape
    status: Literal["expired", "in_progress", "completed"]
    expires_after: ExpiryShape | None
    expires_at: int | None
    last_active_at: int
    metadata: dict[str, str]


class FileErrorShape(TypedDict):
    """Why a file failed."""

    code: ErrorCode
    message: str


class SizesShape(TypedDict):
    """In tokens."""

    max_chunk_size_tokens: int
    chunk_overlap_tokens: int


class ChunkingShape(TypedDict):
    """How a file was cut."""

    type: Literal["static"]
    static: SizesShape


class StoreFileShape(TypedDict):
    """A file of a vector store."""

    id: str
    object: Literal["vector_store.file"]
    usage_bytes: int
    chunk_count: int
    token_count: int
    created_at: int
    vector_store_id: str
    status: FileStatus
    last_error: FileErrorShape | None
    filename: str
    chunking_strategy: ChunkingShape
    attributes: AttributeMap


class FileBatchShape(TypedDict):
    """Files that were attached together."""

    id: str
    object: Literal["vector_store.files_batch"]
    created_at: int
    vector_store_id: str
    status: FileStatus
    file_counts: CountsShape


class TextShape(TypedDict):
    """A piece of text."""

    type: Literal["text"]
    text: str


class ContentShape(TextShape):
    """A piece of a file's text; the last three are null unless asked for."""

    embedding: list[float] | None
    metadata: dict[str, Any] | None
    chunk_metadata: dict[str, Any] | None


class ContentPage(TypedDict):
    """What a store keeps of a file."""

    object: Literal["vector_store.file_content.page"]
    data: list[ContentShape]
    has_more: Literal[False]
    next_page: None


class HitShape(TypedDict):
    """A passage that was found."""

    file_id: str
    filename: str
    score: Annotated[float, Field(ge=0, le=1)]
    attributes: AttributeMap
    content: list[TextShape]
    chunk_id: int
    chunk_index: int
    char_range: list[int]
    page: NotRequired[int]
    page_last: NotRequired[int]
    heading: NotRequired[str]


class SearchPage(TypedDict):
    """Passages, best first."""

    object: Literal["vector_store.search_results.page"]
    search_query: list[str]
    data: list[HitShape]
    has_more: Literal[False]
    next_page: None


class UsageShape(TypedDict):
    """Tokens that were read."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingShape(TypedDict):
    """The vector of one input; base64 of little-endian float32 where that was asked for."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingsShape(TypedDict):
    """The vectors, in the order of the inputs."""

    object: Literal["list"]
    data: list[EmbeddingShape]
    model: str
    usage: UsageShape


class RankedShape(TypedDict):
    """A document's place in the request, and its relevance."""

    index: int
    relevance_score: Annotated[float, Field(ge=0, le=1)]
    document: NotRequired[dict[str, str]]


class RankingShape(TypedDict):
    """Documents, best first."""

    id: str
    object: Literal["list"]
    model: str
    results: list[RankedShape]
    usage: UsageShape
    meta: dict[str, Any]


class ModelShape(TypedDict):
    """A served model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    task: Literal["embedding", "rerank"]
    revision: str
    max_tokens: int
    device: str
    dtype: str
    engine: str
    dimensions: NotRequired[int]


class ModelList(TypedDict):
    """The served models."""

    object: Literal["list"]
    data: list[ModelShape]


class HealthShape(TypedDict):
    """How the service is."""

    status: Literal["live", "ready"]
