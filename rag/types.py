"""The nouns that travel between the parts: frozen, with array shapes and units beside each field."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

AttributeValue = str | bool | int | float
Attributes = Mapping[str, AttributeValue]

T = TypeVar("T")


class Kind(StrEnum):
    """Which side of a search a text stands on; asymmetric models prefix the two differently."""

    QUERY = "query"
    PASSAGE = "passage"


class Priority(StrEnum):
    """Who is served first when a model is busy: people who wait, or ingestion."""

    INTERACTIVE = "interactive"
    BULK = "bulk"


class FileStatus(StrEnum):
    """The state of a file within a vector store."""

    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class ErrorCode(StrEnum):
    """Why a file could not be ingested, in OpenAI's words."""

    SERVER_ERROR = "server_error"
    UNSUPPORTED_FILE = "unsupported_file"
    INVALID_FILE = "invalid_file"


# --- models ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a vector store stamps on itself, and what the models route shows."""

    id: str
    revision: str
    dimension: int  # 0 for a reranker
    max_tokens: int  # the window, special tokens included
    has_sparse: bool = False
    device: str = "cpu"
    dtype: str = "float32"
    engine: str = "torch"


@dataclass(frozen=True, slots=True)
class SparseVector:
    """Lexical weights of one text: `indices` int32 (n,), sorted and unique; `values` float32 (n,), positive."""

    indices: Int32
    values: Float32


@dataclass(frozen=True, slots=True)
class Embeddings:
    """The vectors of several texts, in the order of the texts.

    `dense` is float32 (n, dimension), every row of unit length and finite; `token_counts` is int32 (n,), special
    tokens included; `sparse` has n entries where the model gives lexical weights, and is None elsewhere.
    """

    dense: Float32
    token_counts: Int32
    sparse: tuple[SparseVector, ...] | None = None

    def __len__(self) -> int:
        return len(self.dense)


@dataclass(frozen=True, slots=True)
class Scores:
    """Relevance of passages to one query: `values` float32 (n,) in [0, 1], in the order of the passages."""

    values: Float32
    token_count: int


# --- documents ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Section:
    """A stretch of text that a reader found, with its place in the document."""

    text: str
    page: int | None = None  # counted from 1
    heading: str | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """A passage that is embedded and found as one. `start` and `end` are character offsets in the parsed text."""

    ordinal: int
    text: str
    token_count: int
    start: int
    end: int
    page: int | None = None
    page_last: int | None = None
    heading: str | None = None


def text_bytes(chunks: Iterable[Chunk]) -> int:
    """What the chunks count for in `usage_bytes` and quotas: UTF-8 bytes of their texts."""
    return sum(len(chunk.text.encode()) for chunk in chunks)


@dataclass(frozen=True, slots=True)
class ChunkingStrategy:
    """Sizes in tokens of the embedding model's tokenizer."""

    max_chunk_size_tokens: int = 800
    chunk_overlap_tokens: int = 400


@dataclass(frozen=True, slots=True)
class IngestedPart:
    """Chunks of one file that follow each other and, row by row, their embeddings; never empty."""

    chunks: tuple[Chunk, ...]
    embeddings: Embeddings
    total: int  # chunks of the whole file
    plan: str = ""  # how the file was cut: parts of different plans do not belong together
    timings: Mapping[str, float] = field(default_factory=dict)  # seconds by stage

    @property
    def usage_bytes(self) -> int:
        """UTF-8 bytes of the chunk texts."""
        return text_bytes(self.chunks)

    @property
    def is_first(self) -> bool:
        return self.chunks[0].ordinal == 0

    @property
    def is_last(self) -> bool:
        return self.chunks[-1].ordinal == self.total - 1


@dataclass(frozen=True, slots=True)
class StoredText:
    """What is kept of a file in a store: its chunks in order and, where asked for, their vectors (n, dimension)."""

    chunks: tuple[Chunk, ...]
    vectors: Float32 | None = None


# --- records --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileRecord:
    """An uploaded file."""

    id: str
    owner: str
    filename: str
    bytes: int
    purpose: str
    created_at: int  # Unix seconds, as everywhere
    sha256: str
    expires_at: int | None = None


@dataclass(frozen=True, slots=True)
class FileCounts:
    """How many files of a store are in which state; derived from rows, never kept."""

    in_progress: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0

    @property
    def total(self) -> int:
        return self.in_progress + self.completed + self.failed + self.cancelled


@dataclass(frozen=True, slots=True)
class VectorStoreRecord:
    """A vector store as its owner sees it."""

    id: str
    owner: str
    name: str
    created_at: int
    last_active_at: int
    model: ModelInfo
    description: str | None = None
    metadata: Mapping[str, str] | None = None
    expires_after_days: int | None = None
    file_counts: FileCounts = FileCounts()
    usage_bytes: int = 0

    @property
    def expires_at(self) -> int | None:
        """When it expires unless it is used before; None for never."""
        return None if self.expires_after_days is None else self.last_active_at + self.expires_after_days * 86_400


@dataclass(frozen=True, slots=True)
class FileError:
    """Why a file failed: a code for programs, a sentence for people."""

    code: ErrorCode
    message: str


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file within a vector store."""

    store_id: str
    file_id: str
    status: FileStatus
    created_at: int
    chunking: ChunkingStrategy
    attributes: Attributes
    usage_bytes: int = 0  # UTF-8 bytes of the chunk texts
    last_error: FileError | None = None
    chunk_count: int = 0
    token_count: int = 0  # what was embedded, overlaps included
    filename: str = ""


@dataclass(frozen=True, slots=True)
class FileBatch:
    """Files that were attached to a store together."""

    id: str
    store_id: str
    created_at: int
    cancelled: bool = False
    file_counts: FileCounts = FileCounts()

    @property
    def status(self) -> FileStatus:
        """Cancelled for good; otherwise completed when no file is in progress, however many failed."""
        if self.cancelled:
            return FileStatus.CANCELLED
        return FileStatus.IN_PROGRESS if self.file_counts.in_progress else FileStatus.COMPLETED


@dataclass(frozen=True, slots=True)
class NewAttachment:
    """What a caller asks to attach."""

    file_id: str
    attributes: Attributes = field(default_factory=dict)
    chunking: ChunkingStrategy = ChunkingStrategy()


@dataclass(frozen=True, slots=True)
class IngestJob:
    """One file to read, cut and embed. The bytes lie in the blobs under `file_id`."""

    store_id: str
    file_id: str
    filename: str
    chunking: ChunkingStrategy
    attempt: int = 1
    batch_id: str | None = None  # the batch that it was attached with
    kept: int = 0  # how many chunks, from the first on, are kept from an earlier attempt
    plan: str = ""  # to what plan those belong
    room: int | None = None  # bytes of text that the owner's quota has left; None for any number


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A cursor into a list sorted by creation time and, within a second, by id."""

    limit: int = 20
    order: str = "desc"
    after: str | None = None
    before: str | None = None


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A part of a list, in the order that was asked for."""

    items: tuple[T, ...]
    has_more: bool


# --- search ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hit:
    """A chunk that was found. `score` in [0, 1] is the number shown and the one that a threshold sees."""

    store_id: str
    file_id: str
    filename: str
    attributes: Attributes
    chunk: Chunk
    chunk_id: int
    score: float
    query_index: int = 0  # which of the queries it matches best


@dataclass(frozen=True, slots=True)
class SearchResult:
    """A ranked page over one or several stores."""

    hits: tuple[Hit, ...]
    queries: tuple[str, ...]
    timings: Mapping[str, float]  # seconds by stage
    notes: Mapping[str, str] = field(default_factory=dict)  # header name to value, such as X-Rerank: unavailable
