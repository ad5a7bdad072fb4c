"""The whole settings tree: `args` of the configuration file, then the environment, then defaults."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from rag.service import ServiceOptions
from rag.settings import (
    Branch,
    ChunkSettings,
    FileBatchParams,
    FileIngestionParams,
    IngestionSettings,
    ModelSettings,
    QuotaSettings,
    ReaderSettings,
    SearchSettings,
)
from rag.types import ChunkingStrategy
from storage.settings import StorageSettings

MIB = 1024 * 1024


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class ApiSettings(Branch):
    """What is said over HTTP, and to whom."""

    host: str = Field("127.0.0.1", description="Where to listen; anything but loopback needs keys.")
    port: int = Field(8000, ge=0, le=65_535)
    keys: dict[str, SecretStr] = Field(
        {}, description="Owner's name to key; from the environment only (FLORILEGIUM_API__KEYS, a JSON object)."
    )
    allow_anonymous: bool = Field(False, description="Serve without keys beyond loopback.")
    max_upload_bytes: int = Field(32 * MIB, ge=1, description="Size of one uploaded file.")
    max_body_bytes: int = Field(16 * MIB, ge=1024, description="Size of any other request body.")
    ingest_wait_s: float = Field(2.0, ge=0, le=60, description="How long attach and create wait for ingestion.")
    poll_after_ms: int = Field(500, ge=1, description="How long clients should wait between two looks at a file.")
    token_ids: Literal["decode", "refuse"] = Field("decode", description="What to do with token ids as input.")
    tiktoken_encoding: str = Field("cl100k_base", description="The encoding whose ids clients send.")
    tiktoken_dir: Path | None = Field(None, description="A folder with the encoding's file; the packaged one if unset.")
    ready_timeout_s: float = Field(5.0, gt=0, description="Deadline of the probe behind /health/ready.")

    @model_validator(mode="after")
    def _strangers_need_keys(self) -> ApiSettings:
        self.check_host(self.host)
        if any(not name or not key.get_secret_value() for name, key in self.keys.items()):
            raise ValueError("api.keys: a name or a key is empty")
        return self

    def check_host(self, host: str) -> None:
        """Raises ValueError where strangers would be served at `host` though nobody said that they may."""
        if not self.keys and not self.allow_anonymous and not _is_loopback(host):
            raise ValueError(
                f"The service would listen at {host}, which others can reach, but no API key is configured. Set "
                """FLORILEGIUM_API__KEYS='{"alice": "<a long random key>"}', keep api.host at 127.0.0.1, """
                "or set api.allow_anonymous: true to serve everybody"
            )


class Settings(BaseSettings):
    """Everything that can be set."""

    model_config = SettingsConfigDict(
        env_prefix="FLORILEGIUM_",
        env_nested_delimiter="__",
        env_parse_none_str="null",
        extra="forbid",
        nested_model_default_partial_update=True,
    )

    data_dir: Path = Field(Path("data"), description="Where everything is kept.")
    api: ApiSettings = ApiSettings()
    embedder: ModelSettings = ModelSettings(model="bge-small-en-v1.5")
    reranker: ModelSettings | None = ModelSettings(model="ms-marco-MiniLM-L-12-v2")
    chunking: ChunkSettings = ChunkSettings()
    file_ingestion_params: FileIngestionParams = FileIngestionParams()
    file_batch_params: FileBatchParams = FileBatchParams()
    ingestion: IngestionSettings = IngestionSettings()
    quotas: QuotaSettings = QuotaSettings()
    search: SearchSettings = SearchSettings()
    reader: ReaderSettings = ReaderSettings()
    storage: StorageSettings = StorageSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, then the environment; keys are taken from the environment alone."""
        if isinstance(init_settings, InitSettingsSource):
            _refuse_written_keys(init_settings.init_kwargs)
        return init_settings, env_settings

    def service_options(self) -> ServiceOptions:
        """What the service needs to know of all this."""
        return ServiceOptions(
            embedder_aliases=self.embedder.aliases,
            reranker_aliases=self.reranker.aliases if self.reranker else (),
            chunking=ChunkingStrategy(self.chunking.max_chunk_size_tokens, self.chunking.chunk_overlap_tokens),
            search=self.search,
            ingest_wait_s=self.api.ingest_wait_s,
            max_upload_bytes=self.api.max_upload_bytes,
            ready_timeout_s=self.api.ready_timeout_s,
        )


def _refuse_written_keys(arguments: Mapping[str, Any]) -> None:
    api = arguments.get("api")
    if isinstance(api, Mapping) and api.get("keys"):
        raise ValueError("api.keys are secrets and do not belong in a file: set FLORILEGIUM_API__KEYS instead")
