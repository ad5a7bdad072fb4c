"""A store in a fresh directory, closed again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.local import LocalStores
from tests.storage.made import store_record


class Clock:
    """A time that tests move."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def stores(tmp_path: Path, clock: Clock) -> Iterator[LocalStores]:
    opened = LocalStores(tmp_path / "data", threads=1, clock=clock)
    yield opened
    opened.close()


@pytest.fixture
def store(stores: LocalStores) -> LocalStores:
    """With one empty vector store in it."""
    stores.create_store(store_record())
    return stores
