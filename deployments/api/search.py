"""POST /v1/vector_stores/{id}/search."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from deployments.api.dependencies import Owner, Recorder, Service, server_timing
from deployments.api.shapes import SearchPage, StoreId
from deployments.api.strict import StrictRoute
from deployments.api.wire import Json, Search
from rag.types import Hit, SearchResult

router = APIRouter(prefix="/v1", route_class=StrictRoute)


@router.post("/vector_stores/{vector_store_id}/search", response_model=SearchPage)
async def search(vector_store_id: StoreId, body: Search, owner: Owner, service: Service, metrics: Recorder) -> Json:
    """The passages of a store that answer a query best."""
    result = await service.search(owner, body.to_request(vector_store_id))
    metrics.stages(result.timings)
    return Json(_answer(result), headers={**result.notes, **server_timing(result.timings)})


def _answer(result: SearchResult) -> dict[str, Any]:
    return {
        "object": "vector_store.search_results.page",
        "search_query": result.queries,
        "data": [_hit(hit) for hit in result.hits],
        "has_more": False,
        "next_page": None,
    }


def _hit(hit: Hit) -> dict[str, Any]:
    chunk = hit.chunk
    shown: dict[str, Any] = {
        "file_id": hit.file_id,
        "filename": hit.filename,
        "score": hit.score,
        "attributes": dict(hit.attributes),
        "content": [{"type": "text", "text": chunk.text}],
        "chunk_id": hit.chunk_id,
        "chunk_index": chunk.ordinal,
        "char_range": [chunk.start, chunk.end],
    }
    known = {"page": chunk.page, "page_last": chunk.page_last, "heading": chunk.heading}
    return shown | {name: value for name, value in known.items() if value is not None}
