"""How large a request body may be, decided before it is read and again while it arrives."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rag.errors import InvalidRequest, TooLarge

UPLOAD_PATH = "/v1/files"
FORM_OVERHEAD = 64 * 1024  # of a multipart form around its file


class BodyLimit:
    """ASGI middleware that raises TooLarge, naming the limit.

    The frameworks' own limiter answers in plain text, which is no error object.
    """

    def __init__(self, app: ASGIApp, *, max_body_bytes: int, max_upload_bytes: int) -> None:
        self._app = app
        self._max_body = max_body_bytes
        self._max_upload = max_upload_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        upload = scope["path"] == UPLOAD_PATH
        limit = self._max_upload if upload else self._max_body
        slack = FORM_OVERHEAD if upload else 0
        declared = Headers(scope=scope).get("content-length")
        if declared is not None and _number(declared) > limit + slack:
            raise _too_large(limit)
        received = 0

        async def limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit + slack:
                raise _too_large(limit)
            return message

        await self._app(scope, limited, send)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise InvalidRequest("The Content-Length header is not a number.")
    return int(text)


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"The request body is larger than the limit of {limit} bytes.")
