"""What tests of readers share."""

from __future__ import annotations

import pytest

from rag.errors import UnsupportedFile
from rag.parsing import parse
from rag.settings import ReaderSettings
from rag.types import Section

LIMITS = ReaderSettings()


def read(data: bytes, filename: str, limits: ReaderSettings = LIMITS) -> list[Section]:
    return parse(data, filename, limits)


def text_of(data: bytes, filename: str) -> str:
    return "\n".join(section.text for section in read(data, filename))


def refusal(data: bytes, filename: str, limits: ReaderSettings = LIMITS) -> UnsupportedFile:
    with pytest.raises(UnsupportedFile) as raised:
        read(data, filename, limits)
    assert raised.value.message.endswith(".")
    return raised.value
