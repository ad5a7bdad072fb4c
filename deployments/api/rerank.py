"""POST /v1/rerank, in an answer that the clients of Cohere and of Jina both read."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter

from deployments.api.dependencies import Recorder, Service, server_timing
from deployments.api.shapes import RankingShape
from deployments.api.strict import StrictRoute
from deployments.api.wire import Json, RerankRequest
from rag import ids

router = APIRouter(route_class=StrictRoute)

DOCUMENTS_PER_UNIT = 100  # of a search, as Cohere counts them


@router.post("/v1/rerank", response_model=RankingShape)
@router.post("/v2/rerank", include_in_schema=False)
@router.post("/rerank", include_in_schema=False)
async def rerank(body: RerankRequest, service: Service, metrics: Recorder) -> Json:
    """Documents by relevance to a query; `index` counts in the request."""
    started = time.perf_counter()
    ranking = await service.inference.rerank(
        body.model,
        body.query,
        body.documents,
        top_n=body.top_n,
        max_tokens_per_document=body.max_tokens_per_doc,
    )
    timings = {"rerank": time.perf_counter() - started}
    metrics.stages(timings)
    answer = {
        "id": ids.new_id("rerank-"),
        "object": "list",
        "model": ranking.model,
        "results": [_result(index, score, body) for index, score in ranking.results],
        "usage": {"prompt_tokens": ranking.token_count, "total_tokens": ranking.token_count},
        "meta": {
            "api_version": {"version": "2"},
            "billed_units": {"search_units": -(-len(body.documents) // DOCUMENTS_PER_UNIT)},
        },
    }
    return Json(answer, headers=server_timing(timings))


def _result(index: int, score: float, body: RerankRequest) -> dict[str, Any]:
    result: dict[str, Any] = {"index": index, "relevance_score": score}
    if body.return_documents:
        result["document"] = {"text": body.documents[index]}
    return result
