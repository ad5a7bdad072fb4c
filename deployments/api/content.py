"""GET /v1/vector_stores/{id}/files/{file_id}/content: what a store keeps of a file's text."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

from fastapi import APIRouter

from deployments.api.dependencies import Owner, Service
from deployments.api.shapes import ContentPage, StoreId
from deployments.api.wire import Json
from rag.types import Attachment, Chunk, Float32, StoredText

router = APIRouter(prefix="/v1/vector_stores/{vector_store_id}/files/{file_id}/content")


@router.get("", response_model=ContentPage)
async def get_content(
    vector_store_id: StoreId,
    file_id: str,
    owner: Owner,
    service: Service,
    include_embeddings: bool = False,
    include_metadata: bool = False,
) -> Json:
    """The text that was read from a file, as it runs; with one of the parameters, chunk by chunk as it was embedded.

    A file that is not completed has no text yet, and gives an empty list.
    """
    text = await service.file_text(owner, vector_store_id, file_id, with_vectors=include_embeddings)
    if not (include_embeddings or include_metadata):
        return Json(_page([_item(piece) for piece in running(text.chunks)]))
    file = await service.get_attachment(owner, vector_store_id, file_id) if include_metadata else None
    items = _embedded(text, file)
    return await asyncio.to_thread(Json, _page(items))  # the vectors of a book take a while to write out


def running(chunks: Sequence[Chunk]) -> Iterator[str]:
    """The text that the chunks cover, an item a chunk: what an earlier one has is not repeated.

    Joined, the items are the document. White space that was left out between two chunks is one newline.
    """
    end = chunks[0].start if chunks else 0
    for chunk in chunks:
        gap = "\n" if chunk.start > end else ""
        yield gap + chunk.text[max(0, end - chunk.start) :]
        end = max(end, chunk.end)


def _embedded(text: StoredText, file: Attachment | None) -> list[dict[str, Any]]:
    """The chunks with their vectors, where they were read, and with their places, where `file` is there."""
    vectors: Float32 | Sequence[None] = [None] * len(text.chunks) if text.vectors is None else text.vectors
    metadata = None if file is None else _of_file(file)
    return [
        _item(chunk.text, vector, metadata, None if file is None else _of_chunk(chunk))
        for chunk, vector in zip(text.chunks, vectors, strict=True)
    ]


def _of_file(file: Attachment) -> dict[str, Any]:
    return {"file_id": file.file_id, "filename": file.filename, "attributes": dict(file.attributes)}


def _of_chunk(chunk: Chunk) -> dict[str, Any]:
    return {
        "ordinal": chunk.ordinal,
        "start": chunk.start,
        "end": chunk.end,
        "page": chunk.page,
        "page_last": chunk.page_last,
        "heading": chunk.heading,
        "token_count": chunk.token_count,
    }


def _item(
    text: str,
    embedding: Float32 | None = None,
    metadata: dict[str, Any] | None = None,
    chunk_metadata: dict[str, Any] | None = None,
) -> dict[str, Any]:
    return {
        "type": "text",
        "text": text,
        "embedding": embedding,
        "metadata": metadata,
        "chunk_metadata": chunk_metadata,
    }


def _page(items: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"object": "vector_store.file_content.page", "data": items, "has_more": False, "next_page": None}
