"""POST /v1/embeddings."""

from __future__ import annotations

import binascii
import time

import numpy as np
from fastapi import APIRouter

from deployments.api.dependencies import Recorder, Service, server_timing
from deployments.api.shapes import EmbeddingsShape
from deployments.api.strict import StrictRoute
from deployments.api.wire import EmbeddingRequest, Json
from rag.types import Float32

router = APIRouter(prefix="/v1", route_class=StrictRoute)


@router.post("/embeddings", response_model=EmbeddingsShape)
async def create_embeddings(body: EmbeddingRequest, service: Service, metrics: Recorder) -> Json:
    """Texts to vectors, in the order of the texts."""
    started = time.perf_counter()
    found = await service.inference.embed(
        body.model, body.input, kind=body.kind, truncate=bool(body.truncate), dimensions=body.dimensions
    )
    timings = {"embed": time.perf_counter() - started}
    metrics.stages(timings)
    rows = np.ascontiguousarray(found.dense, dtype="<f4")
    vectors = [_base64(row) for row in rows] if body.encoding_format == "base64" else rows
    tokens = int(found.token_counts.sum())
    answer = {
        "object": "list",
        "data": [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(vectors)],
        "model": body.model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    return Json(answer, headers=server_timing(timings))


def _base64(row: Float32) -> str:
    """The bytes of little-endian float32."""
    return binascii.b2a_base64(row.data, newline=False).decode("ascii")
