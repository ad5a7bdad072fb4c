"""The outermost layer: every request gets an id, an answer whatever happens, and is counted."""

from __future__ import annotations

import logging
import re
import secrets
import time

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.api.errors import answer
from deployments.api.metrics import Metrics
from rag.errors import RagError

log = logging.getLogger(__name__)

REQUEST_ID = "x-request-id"
CALLER_LEFT = 499  # no answer is sent; this is for the count
SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class Edge:
    """ASGI middleware around everything else of ours."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        request_id = _request_id(scope)
        status = 0

        async def tagged(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (REQUEST_ID.encode(), request_id.encode())]
            await send(message)

        try:
            await self._app(scope, receive, tagged)
        except ClientDisconnect:
            log.info("request %s: the caller left before the body was complete", request_id)
            status = CALLER_LEFT
        except Exception as error:
            if not isinstance(error, RagError):
                log.exception("request %s: %s %s failed", request_id, scope["method"], scope["path"])
            if status:  # The answer has begun; the server can only break it off.
                raise
            await answer(error)(scope, receive, tagged)
        finally:
            route = getattr(scope.get("route"), "path", "unmatched")
            self._metrics.request(scope["method"], route, status, time.perf_counter() - started)


def _request_id(scope: Scope) -> str:
    sent = Headers(scope=scope).get(REQUEST_ID, "")
    return sent if SANE_ID.fullmatch(sent) else f"req_{secrets.token_hex(16)}"
