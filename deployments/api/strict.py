"""JSON as the standard has it: no NaN, no Infinity, valid UTF-8; a fault in it is the caller's, with a reason."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pydantic_core
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from rag.errors import InvalidRequest


class StrictRequest(Request):
    """A request whose JSON is parsed strictly, once."""

    async def json(self) -> Any:
        """Raises InvalidRequest."""
        if not hasattr(self, "_json"):
            try:
                self._json = pydantic_core.from_json(await self.body(), allow_inf_nan=False)
            except ValueError as error:
                raise InvalidRequest(f"The body is not valid JSON: {error}.", None, "invalid_json") from error
        return self._json


class StrictRoute(APIRoute):
    """A route that gives its endpoint a StrictRequest."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The framework's handler around our request class."""
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handle(StrictRequest(request.scope, request.receive))

        return strict
