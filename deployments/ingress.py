"""The deployment that speaks HTTP: handles in, an ASGI app out."""

from __future__ import annotations

from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
        return without_request_id(create_app(self._service, self._settings.api))


def without_request_id(app: ASGIApp) -> ASGIApp:
    """Serve puts the request's id on every answer by itself; twice the same header would read as a list."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_once(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [pair for pair in message["headers"] if pair[0] != b"x-request-id"]
            await send(message)

        await app(scope, receive, send_once)

    return wrapped
