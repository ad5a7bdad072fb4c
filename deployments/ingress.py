"""The deployment that speaks HTTP: handles in, an ASGI app out."""

from __future__ import annotations

from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp

from deployments.api.app import create_app
from deployments.clients import RemoteEmbedder, RemoteReranker, RemoteStores
from deployments.composition import make_service
from deployments.settings import Settings


@serve.ingress()
class IngressDeployment:
    """One replica: no state, no model."""

    def __init__(
        self, settings: Settings, embedder: DeploymentHandle, reranker: DeploymentHandle | None, store: DeploymentHandle
    ) -> None:
        self._settings = settings
        self._service = make_service(
            settings,
            embedder=RemoteEmbedder(embedder),
            reranker=RemoteReranker(reranker) if reranker is not None else None,
            stores=RemoteStores(store),
        )

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return create_app(self._service, self._settings.api)
