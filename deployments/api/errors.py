"""Errors to answers: the only place that knows statuses. Every error is OpenAI's error object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import BaseRoute, Match, Route

from deployments.api.wire import Json
from rag.errors import (
    Conflict,
    InvalidRequest,
    ModelFailed,
    ModelMismatch,
    ModelUnavailable,
    NotFound,
    Overloaded,
    RagError,
    Retryable,
    StoreDamaged,
    StoreLocked,
    StoreUnavailable,
    TooLarge,
    Unauthorized,
    UnsupportedFile,
)

# Class to status and default code; a class that is not here answers as its nearest ancestor.
STATUSES: dict[type[RagError], tuple[int, str | None]] = {
    RagError: (500, "server_error"),
    InvalidRequest: (400, "invalid_value"),
    ModelMismatch: (400, "model_mismatch"),
    UnsupportedFile: (400, "unsupported_file"),
    Unauthorized: (401, "invalid_api_key"),
    NotFound: (404, None),
    Conflict: (409, "conflict"),
    TooLarge: (413, "request_too_large"),
    Retryable: (503, "service_unavailable"),
    Overloaded: (429, "rate_limit_exceeded"),
    StoreUnavailable: (503, "service_unavailable"),
    ModelFailed: (500, "model_failed"),
    StoreLocked: (503, "service_unavailable"),
    StoreDamaged: (500, "server_error"),
    ModelUnavailable: (503, "service_unavailable"),
}

# pydantic's kinds of error to OpenAI's codes, where they are not plainly `invalid_value`.
CODES = {
    "missing": "missing_required_parameter",
    "greater_than": "{number}_below_min_value",
    "greater_than_equal": "{number}_below_min_value",
    "less_than": "{number}_above_max_value",
    "less_than_equal": "{number}_above_max_value",
    "string_too_long": "string_above_max_length",
    "string_too_short": "string_below_min_length",
    "too_long": "array_above_max_length",
    "too_short": "array_below_min_length",
}
KEY = "[key]"  # pydantic's step to the name of a member, after the name itself
SEND_JSON = "Expected a JSON object with the header 'Content-Type: application/json'."


def install(app: FastAPI, routes: Sequence[BaseRoute]) -> None:
    """Make every error that a route raises an error object; `routes` are all that the app has."""

    async def on_wrong_method(request: Request, error: Exception) -> Json:
        response = answer(error)
        # The framework names the methods of one route only; an address may have several.
        methods = {
            method
            for route in routes
            if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE
            for method in route.methods or ()
        }
        if methods:
            response.headers["Allow"] = ", ".join(sorted(methods))
        return response

    for kind in (RagError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, _on_error)
    app.add_exception_handler(405, on_wrong_method)


async def _on_error(_: Request, error: Exception) -> Json:
    return answer(error)


def answer(error: Exception) -> Json:
    """The answer to an error of any kind; nothing internal is told of one that is not ours."""
    if isinstance(error, RagError):
        return _of_rag(error)
    if isinstance(error, RequestValidationError):
        return _of_validation(error.errors())
    if isinstance(error, HTTPException):
        return _of_http(error)
    return _object(500, "The server failed on this request; the log has the reason under the request id.", None, None)


def _of_rag(error: RagError) -> Json:
    # An error from another process may carry a whole traceback as its text; what it wraps does not.
    cause = getattr(error, "cause", None)
    if isinstance(cause, RagError):
        error = cause
    status, code = next(STATUSES[cls] for cls in type(error).__mro__ if cls in STATUSES)
    headers = {"Retry-After": str(error.retry_after)} if isinstance(error, Retryable) else None
    if status == 409:
        headers = {"x-should-retry": "false"}
    return _object(status, error.message, error.param, error.code or code, headers)


def _of_http(error: HTTPException) -> Json:
    if isinstance(error.__cause__, RagError):
        return _of_rag(error.__cause__)
    messages = {404: "There is nothing at this address.", 405: "This address does not take this method."}
    message = messages.get(error.status_code, error.detail or HTTPStatus(error.status_code).phrase)
    return _object(error.status_code, message, None, None, error.headers)


def _of_validation(errors: Sequence[Any]) -> Json:
    first = errors[0]
    context = first.get("ctx", {})
    param = path_of(first["loc"]) + context.get("within", "")
    code = _code(first["type"], context)
    if not param:
        return _object(400, SEND_JSON, None, "invalid_type")
    if code == "missing_required_parameter":
        message = f"Missing required parameter: '{param}'."
    else:
        message = f"Invalid '{param}': {first['msg'].removeprefix('Value error, ').rstrip('.')}."
    return _object(400, message, param, code)


def _code(kind: str, context: Mapping[str, Any]) -> str:
    if "within" in context:  # found by one of our own checks, under a code of OpenAI's
        return kind
    if kind == "too_long" and context.get("field_type") == "Dictionary":
        return "object_above_max_properties"
    if kind in CODES:
        return CODES[kind].format(number="decimal" if _has_float(context) else "integer")
    return "invalid_type" if kind.endswith(("_type", "_parsing")) else "invalid_value"


def _has_float(context: Mapping[str, Any]) -> bool:
    return any(isinstance(bound, float) for bound in context.values())


def path_of(location: Sequence[str | int]) -> str:
    """('body', 'input', 3) to `input[3]`; the part that says where a parameter travels is left out."""
    path = ""
    for step in location[1:]:
        if step != KEY:
            path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path


def _object(status: int, message: str, param: str | None, code: str | None, headers: Any = None) -> Json:
    kind = "invalid_request_error" if status < 500 else "server_error"
    error = {"message": message, "type": kind, "param": param, "code": code}
    return Json({"error": error}, status_code=status, headers=headers)
