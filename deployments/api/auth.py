"""The one place that turns a key into an owner."""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from pydantic import SecretStr
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from rag.errors import Unauthorized

ANONYMOUS = "local"  # who everybody is where no keys are configured
OPEN_PATHS = "/health/"


class Authentication:
    """ASGI middleware: no key, no route; nothing of the body is read before."""

    def __init__(self, app: ASGIApp, keys: Mapping[str, SecretStr]) -> None:
        self._app = app
        self._keys = {owner: key.get_secret_value().encode() for owner, key in keys.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises Unauthorized."""
        if scope["type"] == "http" and not scope["path"].startswith(OPEN_PATHS):
            scope["owner"] = self._owner(Headers(scope=scope).get("authorization", ""))
        await self._app(scope, receive, send)

    def _owner(self, header: str) -> str:
        if not self._keys:
            return ANONYMOUS
        scheme, _, key = header.partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise Unauthorized("No API key was sent. Send it as 'Authorization: Bearer <key>'.")
        sent = key.strip().encode()
        # Every key is compared, so that the time taken tells nothing about any of them.
        matching = [owner for owner, known in self._keys.items() if hmac.compare_digest(sent, known)]
        if not matching:
            raise Unauthorized("The API key is not known here.")
        return matching[0]


async def owner_of(request: Request) -> str:
    """The owner on whose behalf a request acts; a route's dependency."""
    owner: str = request.scope["owner"]
    return owner
