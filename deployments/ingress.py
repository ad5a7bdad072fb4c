"""The deployment that speaks HTTP: handles in, an ASGI app out."""

from __future__ import annotations

from ray import serve
from ray.serve.context import _get_global_client
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
        settings.api.check_host(_listening_host())
        self._settings = settings
        self._service = make_service(
            settings,
            embedder=RemoteEmbedder(embedder),
            reranker=RemoteReranker(reranker) if reranker is not None else None,
            stores=RemoteStores(store),
        )

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return without_request_id(create_app(self._service, self._settings.api))


def _listening_host() -> str:
    """Where Serve listens: its `http_options` decide, whatever `api.host` says. No public call tells."""
    client = _get_global_client()
    assert client is not None  # this is a replica
    return client.http_config.host or "0.0.0.0"  # noqa: S104 - Serve's default with its proxy


def without_request_id(app: ASGIApp) -> ASGIApp:
    """Serve puts the request's id on every answer by itself; twice the same header would read as a list."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_once(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [pair for pair in message["headers"] if pair[0] != b"x-request-id"]
            await send(message)

        await app(scope, receive, send_once)

    return wrapped
