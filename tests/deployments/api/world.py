"""An app over doubles, and clients that talk to it within the process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import httpx
import httpx2
from openai import AsyncOpenAI

from deployments.api.app import create_app
from deployments.settings import ApiSettings
from rag.service import RagService, ServiceOptions
from tests.doubles import FolderBlobs, HashEmbedder, MemoryStores, OverlapReranker, ParagraphIngestor

MODEL = "hash-embedder"
RERANKER = "overlap-reranker"


TOKENS = {15339: "hello", 1917: "world"}


def decode(ids: Sequence[int]) -> str:
    return " ".join(TOKENS.get(i, "unheard") for i in ids)


class World:
    """Everything behind one app, within reach of a test."""

    def __init__(self, folder: Path, settings: ApiSettings, options: ServiceOptions, *, reranker: bool = True) -> None:
        self.embedder = HashEmbedder()
        self.reranker = OverlapReranker()
        self.blobs = FolderBlobs(folder)
        self.stores = MemoryStores(ParagraphIngestor(self.blobs, self.embedder))
        self.service = RagService(
            self.embedder,
            self.reranker if reranker else None,
            self.stores,
            self.blobs,
            options,
            decode_tokens=decode,
        )
        self.app = create_app(self.service, settings)

    def http(self, key: str | None = None) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://app", headers=headers)

    def openai(self, key: str = "any") -> AsyncOpenAI:
        transport = httpx2.AsyncClient(transport=httpx2.ASGITransport(self.app))
        return AsyncOpenAI(api_key=key, base_url="http://app/v1", http_client=transport, max_retries=0)


MakeWorld = Callable[..., World]
