"""What both compositions share: the service in front of the parts, wherever those run."""

from __future__ import annotations

from functools import partial

from deployments.settings import ApiSettings, Settings
from rag.inference import DecodeTokens
from rag.protocols import Embedder, Reranker, VectorStores
from rag.service import RagService
from rag.tiktokens import decode, use_tables
from storage.blobs import DirectoryBlobs
from storage.layout import ShardLayout


def make_blobs(settings: Settings) -> DirectoryBlobs:
    """Uploaded bytes, in the data directory; every replica must see the same one."""
    return DirectoryBlobs(ShardLayout(settings.data_dir).blobs)


def make_service(
    settings: Settings, *, embedder: Embedder, reranker: Reranker | None, stores: VectorStores
) -> RagService:
    """The service over these parts."""
    return RagService(
        embedder,
        reranker,
        stores,
        make_blobs(settings),
        settings.service_options(),
        decode_tokens=_token_decoder(settings.api),
    )


def _token_decoder(api: ApiSettings) -> DecodeTokens | None:
    if api.token_ids == "refuse":  # noqa: S105 - not a password
        return None
    use_tables(api.tiktoken_encoding, api.tiktoken_dir)
    return partial(decode, encoding=api.tiktoken_encoding)
