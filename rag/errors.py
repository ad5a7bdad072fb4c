"""Everything that can go wrong on purpose.

RagError
├── InvalidRequest        the caller's input is wrong; `param` names the field
│   └── ModelMismatch     a store was filled with another embedding model
├── UnsupportedFile       a document that cannot be read; `reason` is OpenAI's error code
├── Unauthorized          no key, or an unknown one
├── NotFound              unknown id, or somebody else's
├── Conflict              it exists already, or is being changed
├── TooLarge              over a size limit
├── Overloaded            a queue is full; try again after `retry_after` seconds
├── StoreUnavailable      a part of the service is restarting; try again after `retry_after` seconds
├── ModelFailed           a model gave no usable output
├── StoreLocked           start-up: another process owns the data
├── StoreDamaged          start-up: the data cannot be opened as it is
└── ModelUnavailable      start-up: a model cannot be loaded

Errors cross process borders, so each is built from positional arguments alone and survives pickling.
"""

from __future__ import annotations

from rag.types import ErrorCode


class RagError(Exception):
    """The root. `message` is a sentence for the caller; `param` names the offending field, where there is one."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message, param, code)
        self.message = message
        self.param = param
        self.code = code

    def __str__(self) -> str:
        return self.message


class InvalidRequest(RagError):
    """The caller's input is wrong."""


class ModelMismatch(InvalidRequest):
    """A vector store was filled with another embedding model than the one that is served."""


class UnsupportedFile(RagError):
    """A document cannot be read."""

    def __init__(self, message: str, reason: ErrorCode = ErrorCode.INVALID_FILE) -> None:
        super().__init__(message, "file", reason)
        self.args = (message, reason)
        self.reason = reason


class Unauthorized(RagError):
    """No key was sent, or one that is not known."""


class NotFound(RagError):
    """There is no such thing, or it belongs to somebody else."""


class Conflict(RagError):
    """It exists already, or is being changed by somebody else."""


class TooLarge(RagError):
    """The input is over a size limit."""


class Retryable(RagError):
    """Nothing is wrong with the request; it should be sent again after `retry_after` seconds."""

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.args = (message, retry_after)
        self.retry_after = min(60, max(1, retry_after))


class Overloaded(Retryable):
    """A queue is full."""


class StoreUnavailable(Retryable):
    """A part of the service is restarting or unreachable."""


class ModelFailed(RagError):
    """A model raised, or gave an output that is not finite."""


class StoreLocked(RagError):
    """Another process owns the data directory."""


class StoreDamaged(RagError):
    """The data on disk cannot be opened as it is; nothing was changed."""


class ModelUnavailable(RagError):
    """A model cannot be loaded; the message says what was looked for and what to do."""
