"""Generated requests, good and bad, against our own document: nothing breaks, and no answer is other than it says.

The models are doubles; what is kept lies in the real store.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, settings

from deployments.settings import ApiSettings
from rag.service import RagService, ServiceOptions
from storage.blobs import DirectoryBlobs
from storage.concurrency import AsyncStores
from storage.local import LocalStores
from tests.deployments.api.world import MODEL, RERANKER, World, decode
from tests.doubles import ParagraphIngestor

EXAMPLES = 20  # of each operation, good and bad each, besides those at the edges of its parameters
JSON = "application/json"

WORLD = World(Path("not used"), ApiSettings(), ServiceOptions())


@asynccontextmanager
async def real_storage(app: FastAPI) -> AsyncIterator[None]:
    """Put the service over a store on disk in the place of the one in memory."""
    with TemporaryDirectory() as folder:
        blobs = DirectoryBlobs(Path(folder) / "uploads")
        stores = AsyncStores(LocalStores(Path(folder) / "data"), ParagraphIngestor(blobs, WORLD.embedder), blobs)
        await stores.start()
        app.state.service = RagService(WORLD.embedder, WORLD.reranker, stores, blobs, decode_tokens=decode)
        yield
        await stores.close()


WORLD.app.router.lifespan_context = real_storage
schema = schemathesis.openapi.from_dict(
    WORLD.app.openapi(),
    config=schemathesis.Config.from_dict({"generation": {"deterministic": True, "max-examples": EXAMPLES}}),
)
schema.app = WORLD.app


class Known:
    """A store with a file and a batch, so that half of the good requests concern something that is there."""

    def __init__(self) -> None:
        self.ids: dict[str, str] = {}

    def fill(self) -> None:
        """Make what is not there, or was deleted by a request."""
        batch = schema["/v1/vector_stores/{vector_store_id}/file_batches/{batch_id}"]["GET"]
        if self.ids and batch.Case(path_parameters=self.ids).call().json().get("file_counts", {}).get("total"):
            return
        upload = {"file": b"night\n\nferry", "purpose": "assistants"}
        self.ids["file_id"] = made("/v1/files", body=upload, media_type="multipart/form-data")
        self.ids["vector_store_id"] = made("/v1/vector_stores", body={"name": "known"}, media_type=JSON)
        self.ids["batch_id"] = made(
            "/v1/vector_stores/{vector_store_id}/file_batches",
            path_parameters=self.ids,
            body={"file_ids": [self.ids["file_id"]]},
            media_type=JSON,
        )

    def put_into(self, case: schemathesis.Case) -> None:
        """Known ids, and what no schema can say of a request."""
        self.fill()
        parameters = case.path_parameters
        if sum(map(len, map(str, parameters.values()))) % 2:
            parameters.update({name: self.ids[name] for name in parameters if name in self.ids})
        item = "file_id" if case.path.endswith("files") else "vector_store_id"
        case.query.update({name: self.ids[item] for name in ("after", "before") if name in case.query})
        for part in parts_of(case.body):
            if isinstance(file_id := part.get("file_id"), str) and len(file_id) % 2:
                part["file_id"] = self.ids["file_id"]
            if "model" in part:
                part["model"] = RERANKER if "documents" in part else MODEL
            if "ranker" in part:
                part["ranker"] = None
            if part.get("dimensions") is not None:
                part["dimensions"] = WORLD.embedder.model.dimension
            if "input" in part:
                part["input"] = with_integers(part["input"])
            if "chunk_overlap_tokens" in part:
                part["chunk_overlap_tokens"] = min(part["chunk_overlap_tokens"], part["max_chunk_size_tokens"] // 2)


def made(path: str, **request: Any) -> str:
    """The id of what a request makes."""
    return schema[path]["POST"].Case(**request).call().json()["id"]


def with_integers(tokens: Any) -> Any:
    """Token ids without the fraction that JSON schema lets whole numbers have."""
    if isinstance(tokens, list):
        return [with_integers(token) for token in tokens]
    return int(tokens) if isinstance(tokens, float) else tokens


def parts_of(body: object) -> Iterator[dict[str, Any]]:
    """The objects within a body, itself included."""
    if isinstance(body, dict):
        yield body
    if isinstance(body, dict | list):
        for part in body.values() if isinstance(body, dict) else body:
            yield from parts_of(part)


KNOWN = Known()


@schema.parametrize()
@settings(deadline=None, derandomize=True, max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
def test_generated_requests_are_answered_as_the_document_says(case: schemathesis.Case) -> None:
    if case.meta is not None and case.meta.generation.mode.is_positive:
        KNOWN.put_into(case)
    case.call_and_validate()
