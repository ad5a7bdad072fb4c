"""The settings tree: where values come from, and what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from deployments.settings import ApiSettings, Settings


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("FLORILEGIUM_"):
            monkeypatch.delenv(name)


def test_the_defaults_are_small_models_on_loopback() -> None:
    settings = Settings()
    assert settings.data_dir == Path("data")
    assert settings.embedder.model == "bge-small-en-v1.5"
    assert settings.reranker is not None
    assert settings.reranker.model == "ms-marco-MiniLM-L-12-v2"
    assert settings.api.host == "127.0.0.1"
    assert settings.api.keys == {}
    options = settings.service_options()
    assert (options.chunking.max_chunk_size_tokens, options.chunking.chunk_overlap_tokens) == (800, 400)
    assert options.max_upload_bytes == 32 * 1024 * 1024


def test_arguments_win_over_the_environment_and_that_over_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLORILEGIUM_API__PORT", "9000")
    monkeypatch.setenv("FLORILEGIUM_API__MAX_UPLOAD_BYTES", "77")
    monkeypatch.setenv("FLORILEGIUM_EMBEDDER__DEVICE", "cpu")
    monkeypatch.setenv("FLORILEGIUM_DATA_DIR", "/srv/data")
    settings = Settings(api={"port": 9001})
    assert (settings.api.port, settings.api.max_upload_bytes) == (9001, 77)
    assert settings.data_dir == Path("/srv/data")
    assert (settings.embedder.model, settings.embedder.device) == ("bge-small-en-v1.5", "cpu")


def test_the_reranker_is_switched_off_by_null(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings(reranker=None).reranker is None
    monkeypatch.setenv("FLORILEGIUM_RERANKER", "null")
    assert Settings().reranker is None


def test_keys_come_from_the_environment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="FLORILEGIUM_API__KEYS"):
        Settings(api={"keys": {"alice": "sk-a"}})
    monkeypatch.setenv("FLORILEGIUM_API__KEYS", json.dumps({"alice": "sk-a"}))
    settings = Settings(api={"port": 1})
    assert settings.api.keys["alice"].get_secret_value() == "sk-a"
    assert "sk-a" not in repr(settings)
    assert "sk-a" not in settings.model_dump_json()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.net"])
def test_strangers_need_keys_and_the_message_says_how(host: str) -> None:
    with pytest.raises(ValidationError, match=r"FLORILEGIUM_API__KEYS.*allow_anonymous"):
        ApiSettings(host=host)
    assert ApiSettings(host=host, keys={"alice": "sk-a"}).host == host
    assert ApiSettings(host=host, allow_anonymous=True).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "::1", "[::1]", "localhost"])
def test_loopback_needs_no_key(host: str) -> None:
    assert ApiSettings(host=host).keys == {}


@pytest.mark.parametrize("keys", [{"": "sk-a"}, {"alice": ""}])
def test_an_empty_name_or_key_is_refused(keys: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="empty"):
        ApiSettings(keys=keys)


@pytest.mark.parametrize(
    "arguments", [{"embeder": {}}, {"api": {"prot": 1}}, {"chunking": {"chunk_overlap_tokens": 401}}]
)
def test_misspelt_and_contradictory_settings_are_refused(arguments: dict) -> None:
    with pytest.raises(ValidationError):
        Settings(**arguments)
