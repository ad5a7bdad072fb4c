"""Settings of the product itself: models, chunks, search, reading. Unknown keys are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Branch(BaseModel):
    """A part of the settings tree."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelSettings(Branch):
    """One served model. `None` means: as the model's own files or the device say."""

    model: str = Field(description="A packaged model's name, a local folder, or a hub id.")
    revision: str | None = Field(None, description="Revision of a hub model.")
    served_id: str | None = Field(None, description="The id clients use; the model's name by default.")
    aliases: tuple[str, ...] = Field((), description="Further ids that clients may use for it.")
    device: Literal["auto", "cpu", "cuda"] = "auto"
    engine: Literal["auto", "torch", "onnx"] = Field("auto", description="auto: ONNX where the CPU model is ONNX.")
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    max_tokens: int | None = Field(None, ge=8, description="Window in tokens; at most the model's own.")
    threads: int | None = Field(None, ge=1, description="CPU cores to use; those assigned to the replica by default.")
    query_prefix: str | None = None
    passage_prefix: str | None = None
    max_batch_items: int = Field(256, ge=1, description="How many waiting texts a batch is chosen from.")
    max_batch_tokens: int | None = Field(None, ge=8, description="Tokens in one forward pass, padding included.")
    max_queued: int = Field(2048, ge=1, description="Texts that may wait; beyond, callers get 429.")
    cache_dir: Path | None = Field(None, description="Where packaged models are unpacked and hub models are kept.")


def _check_overlap(**named: int) -> None:
    """Raises ValueError where the first setting is more than half of the second."""
    (overlap_name, overlap), (size_name, size) = named.items()
    if 2 * overlap > size:
        raise ValueError(f"{overlap_name} ({overlap}) may be at most half of {size_name} ({size})")


class ChunkSettings(Branch):
    """How files are cut where the caller does not say. Defaults are OpenAI's."""

    max_chunk_size_tokens: int = Field(800, ge=100, le=4096)
    chunk_overlap_tokens: int = Field(400, ge=0)

    @model_validator(mode="after")
    def _overlap_at_most_half(self) -> ChunkSettings:
        _check_overlap(chunk_overlap_tokens=self.chunk_overlap_tokens, max_chunk_size_tokens=self.max_chunk_size_tokens)
        return self


class FileIngestionParams(Branch):
    """How files are cut that a folder of them is taken from (`florilegium ingest`)."""

    default_chunk_size_tokens: int = Field(512, ge=100, le=4096)
    default_chunk_overlap_tokens: int = Field(128, ge=0)

    @model_validator(mode="after")
    def _overlap_at_most_half(self) -> FileIngestionParams:
        _check_overlap(
            default_chunk_overlap_tokens=self.default_chunk_overlap_tokens,
            default_chunk_size_tokens=self.default_chunk_size_tokens,
        )
        return self


class FileBatchParams(Branch):
    """How file batches are worked off."""

    max_concurrent_files_per_batch: int = Field(3, ge=1, description="Files of one batch that are ingested at once.")
    file_batch_chunk_size: int = Field(10, ge=1, description="Files of one batch before it is another's turn.")
    cleanup_interval_seconds: int = Field(
        86_400, ge=1, description="How often records of batches that are older than 7 days are removed."
    )


class IngestionSettings(Branch):
    """Work on attached files, of all batches and stores together."""

    max_files_in_flight: int = Field(8, ge=1, description="Files that are read and embedded at once.")
    max_seconds: float = Field(3600.0, gt=0, description="For all attempts at one file; then it fails.")


class QuotaSettings(Branch):
    """What one owner may keep; unlimited where nothing is said."""

    max_files: int | None = Field(None, ge=0, description="Uploaded files.")
    max_file_bytes: int | None = Field(None, ge=0, description="Bytes of all uploaded files.")
    max_stores: int | None = Field(None, ge=0, description="Vector stores.")
    max_store_bytes: int | None = Field(None, ge=0, description="Bytes of text in all vector stores.")


class SearchSettings(Branch):
    """How a search is answered where the caller does not say."""

    ranker: Literal["auto", "none"] = Field("auto", description="auto: rerank where a reranker is served.")
    # 12 chunks of 256 tokens keep a reranked search under a second on two cores.
    candidates: int = Field(12, ge=1, le=1000, description="How many chunks are reranked (at least those asked for).")
    rerank_max_tokens: int | None = Field(256, ge=16, description="Tokens of a chunk that the reranker reads.")


class ReaderSettings(Branch):
    """Limits within which a document is read, in a process of its own."""

    max_seconds: float = Field(60.0, gt=0, description="Wall time for one document.")
    max_memory_mb: int = Field(2048, ge=256, description="Address space of the reading process.")
    max_pages: int = Field(10_000, ge=1, description="Pages or slides of one document.")
    max_unpacked_mb: int = Field(
        100, ge=1, description="What an archive (office document, EPUB) may unpack to, in MiB."
    )
    max_characters: int = Field(50_000_000, ge=1, description="Text that one document may yield.")
    processes: int = Field(2, ge=1, description="Documents read at once by one ingestor.")
    ocr: bool = Field(False, description="Recognise the text of scanned PDF pages, with tesseract.")
    ocr_languages: str = Field("eng", pattern=r"^\w[\w/-]*(\+\w[\w/-]*)*$", description="As tesseract names them.")
