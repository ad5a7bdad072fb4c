"""Identifiers: prefix plus 24 random letters and digits, in the form that OpenAI's clients know."""

from __future__ import annotations

import re
import secrets
import string

from rag.errors import InvalidRequest

FILE = "file-"
VECTOR_STORE = "vs_"
FILE_BATCH = "vsfb_"

_ALPHABET = string.ascii_letters + string.digits
_FORM = re.compile(r"[A-Za-z0-9_-]{1,128}")


def new_id(prefix: str) -> str:
    """A fresh identifier."""
    return prefix + "".join(secrets.choice(_ALPHABET) for _ in range(24))


def check_id(value: str, prefix: str, param: str) -> str:
    """`value`, if it has the form of an id with this prefix.

    Raises:
        InvalidRequest: it has not; an unknown id of the right form is for the caller to find out.
    """
    if not value.startswith(prefix):
        raise InvalidRequest(
            f"Invalid '{param}': '{value}'. Expected an ID that begins with '{prefix.rstrip('_-')}'.",
            param,
            "invalid_value",
        )
    if not _FORM.fullmatch(value):
        raise InvalidRequest(
            f"Invalid '{param}': '{value}'. Expected an ID that contains letters, numbers, underscores, or dashes.",
            param,
            "invalid_value",
        )
    return value
