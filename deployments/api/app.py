"""The composition of the HTTP side: routers, error answers and the layers around them."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.middleware import Middleware

from deployments.api import (
    content,
    embeddings,
    errors,
    file_batches,
    files,
    health,
    metrics,
    models,
    rerank,
    search,
    store_files,
    vector_stores,
)
from deployments.api.auth import Authentication
from deployments.api.edge import Edge
from deployments.api.limits import BodyLimit
from deployments.api.shapes import ERRORS
from deployments.settings import ApiSettings
from rag.service import RagService

# In the order in which they are tried: those that are called most come first.
ROUTERS = (
    embeddings,
    search,
    rerank,
    store_files,
    file_batches,
    content,
    vector_stores,
    files,
    models,
    health,
    metrics,
)


def create_app(service: RagService, settings: ApiSettings) -> FastAPI:
    """An app of its own with each call; `service` and `settings` are in its state."""
    recorder = metrics.Metrics()
    app = FastAPI(
        title="Florilegium",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses=ERRORS,
        middleware=[  # outermost first
            Middleware(Edge, metrics=recorder),
            Middleware(Authentication, keys=settings.keys),
            Middleware(BodyLimit, max_body_bytes=settings.max_body_bytes, max_upload_bytes=settings.max_upload_bytes),
        ],
    )
    app.state.service = service
    app.state.settings = settings
    app.state.metrics = recorder
    errors.install(app, [route for module in ROUTERS for route in module.router.routes])
    for module in ROUTERS:
        app.include_router(module.router)
    return app
