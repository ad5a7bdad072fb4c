"""The formats of the wire: requests as strict models that turn into our types, our types as answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, model_validator
from pydantic_core import PydanticCustomError
from starlette.responses import Response

from deployments.api.shapes import (
    BATCH_FORMS,
    CHUNKING_FORMS,
    AttributeMap,
    DocumentsShape,
    FilterShape,
    InputShape,
    QueryShape,
)
from rag.errors import InvalidRequest
from rag.filters import Filter, check_attributes, parse_filter
from rag.inference import MAX_DOCUMENTS, MAX_INPUTS
from rag.search import DEFAULT_LIMIT, MAX_LIMIT, MAX_QUERIES, SearchRequest
from rag.service import MAX_BATCH_FILES, MAX_FILES, NewVectorStore
from rag.types import AttributeValue, ChunkingStrategy, FileCounts, FileStatus, Kind, NewAttachment, Page

MAX_METADATA = 16
MAX_METADATA_KEY = 64
MAX_METADATA_VALUE = 512

T = TypeVar("T")
Attributes = dict[str, AttributeValue]
Inputs = list[str | list[int]]


class Json(Response):
    """An answer; float32 arrays become lists of numbers without a detour."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """UTF-8 JSON."""
        return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


class Wire(BaseModel):
    """A request body: no coercion between types; unknown members are ignored, null means absent.

    20.0 is a whole number, as JSON has but one kind of number.
    """

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, allow_inf_nan=False)


# --- values that have more than one form ----------------------------------------------------------------------------


def _whole(raw: object) -> object:
    return int(raw) if isinstance(raw, float) and raw.is_integer() else raw


def _inputs(raw: object) -> Inputs:
    """A text, several, the token ids of one, or those of several."""
    if isinstance(raw, str):
        return [raw]
    if not isinstance(raw, list) or not raw:
        raise _wrong("input", "a non-empty string or a non-empty array of strings or token ids")
    if len(raw) > MAX_INPUTS and not _is_token_ids(raw):
        message = f"Invalid 'input': expected at most {MAX_INPUTS} items; got {len(raw)}."
        raise InvalidRequest(message, "input", "array_above_max_length")
    if _is_token_ids(raw):
        return [raw]
    for index, item in enumerate(raw):
        if not isinstance(item, str) and not _is_token_ids(item):
            raise _wrong(f"input[{index}]", "a string or an array of token ids")
    return raw


def _is_token_ids(raw: object) -> bool:
    return isinstance(raw, list) and bool(raw) and all(type(item) is int and item >= 0 for item in raw)


def _documents(raw: object) -> list[str]:
    """Texts, or objects with a text."""
    if not isinstance(raw, list) or not raw:
        raise _wrong("documents", "a non-empty array of strings or of objects with a 'text'")
    if len(raw) > MAX_DOCUMENTS:
        message = f"Invalid 'documents': expected at most {MAX_DOCUMENTS} items; got {len(raw)}."
        raise InvalidRequest(message, "documents", "array_above_max_length")
    return [_document(item, index) for index, item in enumerate(raw)]


def _document(raw: object, index: int) -> str:
    text = raw.get("text") if isinstance(raw, dict) else raw
    if not isinstance(text, str):
        raise _wrong(f"documents[{index}]", "a string or an object with a string 'text'")
    return text


def _queries(raw: object) -> tuple[str, ...]:
    texts = [raw] if isinstance(raw, str) else raw
    if not isinstance(texts, list) or not 1 <= len(texts) <= MAX_QUERIES:
        raise _wrong("query", f"a string or an array of 1 to {MAX_QUERIES} strings")
    for index, text in enumerate(texts):
        if not isinstance(text, str) or not text:
            raise _wrong("query" if isinstance(raw, str) else f"query[{index}]", "a non-empty string")
    return tuple(texts)


def _filter(raw: object) -> Filter | None:
    return None if raw is None else parse_filter(raw)


def _attributes(raw: object) -> Attributes:
    """As `check_attributes`, told as a fault of the place where the attributes stand in the request."""
    try:
        return check_attributes(raw)
    except InvalidRequest as error:
        within = (error.param or "").removeprefix("attributes")
        raise _fault(error.message, within, error.code or "invalid_value") from error


def _wrong(param: str, expected: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid '{param}': expected {expected}.", param, "invalid_value")


def _fault(message: str, within: str = "", code: str = "invalid_value") -> PydanticCustomError:
    """`within` leads from the value that is checked to the part that is wrong."""
    return PydanticCustomError(code, "{message}", {"message": message, "within": within})


WHOLE = BeforeValidator(_whole)
Positive = Annotated[int, Field(ge=1), WHOLE]
Metadata = Annotated[
    dict[
        Annotated[str, Field(min_length=1, max_length=MAX_METADATA_KEY)],
        Annotated[str, Field(max_length=MAX_METADATA_VALUE)],
    ],
    Field(max_length=MAX_METADATA),
]
AttributesField = Annotated[Attributes, PlainValidator(_attributes, json_schema_input_type=AttributeMap | None)]
# Of whatever prefix: an unknown id is for the store to find out.
FileId = Annotated[str, Field(min_length=1, max_length=128, pattern="^[A-Za-z0-9_-]+$")]


# --- models ---------------------------------------------------------------------------------------------------------

KINDS = {
    "query": Kind.QUERY,
    "search_query": Kind.QUERY,
    "passage": Kind.PASSAGE,
    "search_document": Kind.PASSAGE,
}


class EmbeddingRequest(Wire):
    """POST /v1/embeddings; `truncate` and `input_type` are extensions."""

    model: str
    input: Annotated[Inputs, PlainValidator(_inputs, json_schema_input_type=InputShape)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Positive | None = None
    truncate: bool | None = None
    input_type: Literal["query", "passage", "search_query", "search_document"] | None = None

    @property
    def kind(self) -> Kind:
        """Which side of a search the texts stand on; passages unless told otherwise."""
        return KINDS[self.input_type] if self.input_type else Kind.PASSAGE


class RerankRequest(Wire):
    """POST /v1/rerank in the forms of Cohere and Jina."""

    model: str | None = None
    query: str = Field(min_length=1)
    documents: Annotated[list[str], PlainValidator(_documents, json_schema_input_type=DocumentsShape)]
    top_n: Positive | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: Positive | None = None


# --- vector stores --------------------------------------------------------------------------------------------------


class StaticSizes(Wire):
    """Sizes in tokens."""

    max_chunk_size_tokens: Annotated[int, Field(ge=100, le=4096), WHOLE]
    chunk_overlap_tokens: Annotated[int, Field(ge=0), WHOLE]

    @model_validator(mode="after")
    def _overlap_at_most_half(self) -> StaticSizes:
        if self.chunk_overlap_tokens * 2 > self.max_chunk_size_tokens:
            half = f"at most half of the {self.max_chunk_size_tokens} tokens of a chunk"
            raise _fault(f"expected {half}; got {self.chunk_overlap_tokens}", ".chunk_overlap_tokens")
        return self


class Chunking(Wire):
    """How files are cut."""

    model_config = ConfigDict(json_schema_extra=CHUNKING_FORMS)

    type: Literal["auto", "static"]
    static: StaticSizes | None = None

    @model_validator(mode="after")
    def _static_has_sizes(self) -> Chunking:
        if self.type == "static" and self.static is None:
            raise _fault("expected sizes, since the type is 'static'", ".static", "missing_required_parameter")
        return self


def chunking_of(body: Chunking | None, default: ChunkingStrategy) -> ChunkingStrategy:
    """The sizes asked for, or the default."""
    if body is None or body.type == "auto" or body.static is None:
        return default
    return ChunkingStrategy(body.static.max_chunk_size_tokens, body.static.chunk_overlap_tokens)


class ExpiresAfter(Wire):
    """Days since the last use."""

    anchor: Literal["last_active_at"]
    days: Annotated[int, Field(ge=1, le=365), WHOLE]


class CreateVectorStore(Wire):
    """POST /v1/vector_stores."""

    name: str | None = None
    description: str | None = None
    file_ids: list[FileId] | None = Field(None, max_length=MAX_FILES)
    chunking_strategy: Chunking | None = None
    expires_after: ExpiresAfter | None = None
    metadata: Metadata | None = None

    def to_new(self, chunking: ChunkingStrategy) -> NewVectorStore:
        """`chunking` is for files where the request does not say."""
        sizes = chunking_of(self.chunking_strategy, chunking)
        return NewVectorStore(
            name=self.name or "",
            description=self.description,
            metadata=self.metadata,
            expires_after_days=self.expires_after.days if self.expires_after else None,
            files=tuple(NewAttachment(file_id, chunking=sizes) for file_id in self.file_ids or ()),
        )


class UpdateVectorStore(Wire):
    """POST /v1/vector_stores/{id}; null clears metadata and expiry, and leaves the name."""

    name: str | None = None
    expires_after: ExpiresAfter | None = None
    metadata: Metadata | None = None

    def to_changes(self) -> dict[str, object]:
        """Only what was sent."""
        changes: dict[str, object] = {} if self.name is None else {"name": self.name}
        if "metadata" in self.model_fields_set:
            changes["metadata"] = self.metadata
        if "expires_after" in self.model_fields_set:
            changes["expires_after_days"] = self.expires_after.days if self.expires_after else None
        return changes


class AttachFile(Wire):
    """POST /v1/vector_stores/{id}/files."""

    file_id: FileId
    attributes: AttributesField = Field(default_factory=dict)
    chunking_strategy: Chunking | None = None

    def to_new(self, chunking: ChunkingStrategy) -> NewAttachment:
        """`chunking` is for requests that do not say."""
        return NewAttachment(self.file_id, self.attributes, chunking_of(self.chunking_strategy, chunking))


class CreateFileBatch(Wire):
    """POST /v1/vector_stores/{id}/file_batches: ids with what they share, or files each with its own."""

    model_config = ConfigDict(json_schema_extra=BATCH_FORMS)

    file_ids: list[FileId] | None = Field(None, min_length=1, max_length=MAX_BATCH_FILES)
    files: list[AttachFile] | None = Field(None, min_length=1, max_length=MAX_BATCH_FILES)
    attributes: AttributesField = Field(default_factory=dict)
    chunking_strategy: Chunking | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> CreateFileBatch:
        if self.file_ids is None and self.files is None:
            message = "Missing required parameter: 'file_ids', or 'files' in its place."
            raise InvalidRequest(message, "file_ids", "missing_required_parameter")
        if self.file_ids is not None and self.files is not None:
            raise InvalidRequest("Send either 'file_ids' or 'files', not both.", "files", "invalid_value")
        return self

    def to_new(self, chunking: ChunkingStrategy) -> tuple[NewAttachment, ...]:
        """`chunking` is for files of which the request does not say."""
        if self.files is not None:
            return tuple(file.to_new(chunking) for file in self.files)
        sizes = chunking_of(self.chunking_strategy, chunking)
        return tuple(NewAttachment(file_id, self.attributes, sizes) for file_id in self.file_ids or ())


class UpdateFile(Wire):
    """POST /v1/vector_stores/{id}/files/{file_id}: all attributes at once; null clears."""

    attributes: AttributesField


class RankingOptions(Wire):
    """How hits are ranked and which are kept."""

    ranker: str | None = None
    score_threshold: float | None = Field(None, ge=0.0, le=1.0)


class Search(Wire):
    """POST /v1/vector_stores/{id}/search."""

    query: Annotated[tuple[str, ...], PlainValidator(_queries, json_schema_input_type=QueryShape)]
    max_num_results: Annotated[int, Field(ge=1, le=MAX_LIMIT), WHOLE] | None = None
    filters: Annotated[Filter | None, PlainValidator(_filter, json_schema_input_type=FilterShape | None)] = None
    ranking_options: RankingOptions | None = None
    rewrite_query: bool | None = None
    distinct: bool | None = None

    def to_request(self, store_id: str) -> SearchRequest:
        """Defaults filled in."""
        ranking = self.ranking_options or RankingOptions()
        return SearchRequest(
            store_ids=(store_id,),
            queries=self.query,
            limit=self.max_num_results or DEFAULT_LIMIT,
            where=self.filters,
            ranker=ranking.ranker,
            score_threshold=ranking.score_threshold or 0.0,
            rewrite_query=bool(self.rewrite_query),
            distinct=bool(self.distinct),
        )


# --- answers --------------------------------------------------------------------------------------------------------


def page_answer(page: Page[T], show: Callable[[T], Mapping[str, Any]]) -> dict[str, Any]:
    """A cursor list; the cursors of an empty page are empty strings, which clients take where null breaks them."""
    data: Sequence[Mapping[str, Any]] = [show(item) for item in page.items]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else "",
        "last_id": data[-1]["id"] if data else "",
        "has_more": page.has_more,
    }


def deleted_answer(object_id: str, kind: str) -> Json:
    """What is said of something that is gone."""
    return Json({"id": object_id, "object": kind, "deleted": True})


def counts_answer(counts: FileCounts) -> dict[str, int]:
    """Files by status."""
    return {
        "in_progress": counts.in_progress,
        "completed": counts.completed,
        "failed": counts.failed,
        "cancelled": counts.cancelled,
        "total": counts.total,
    }


def polled(answer: Mapping[str, Any], poll_after_ms: int) -> Json:
    """An answer with a status; while work is in progress a header says when to look again."""
    waits = answer["status"] == FileStatus.IN_PROGRESS
    return Json(answer, headers={"openai-poll-after-ms": str(poll_after_ms)} if waits else None)
