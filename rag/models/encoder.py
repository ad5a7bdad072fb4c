"""Sentence encoders of the BERT and XLM-R families under torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModel

from rag.models.base import TokenIds
from rag.models.card import ModelCard
from rag.models.forward import finite_rows
from rag.models.placement import Placement
from rag.models.rows import Row, unit_rows
from rag.models.runtime import computing_dtype, load_pretrained, workers_and_tokens
from rag.models.tokenization import TextTokens
from rag.models.transformer import Transformer, pool
from rag.types import Embeddings, Kind, ModelInfo


class Encoder:
    """`rag.models.base.EmbeddingModel`: hidden states pooled into one vector of unit length."""

    def __init__(
        self, transformer: Transformer, tokens: TextTokens, card: ModelCard, placement: Placement, info: ModelInfo
    ) -> None:
        """`info` is completed by the dimension."""
        self.info = replace(info, dimension=transformer.width)
        self.workers, self.max_batch_tokens = workers_and_tokens(placement)
        self._transformer = transformer
        self._tokens = tokens
        self._pooling = card.pooling

    def tokenize(self, texts: Sequence[str], kind: Kind) -> list[TokenIds]:
        return self._tokens.encode(texts, kind)

    def truncate(self, ids: TokenIds) -> TokenIds:
        return self._tokens.truncate(ids)

    def encode(self, batch: Sequence[TokenIds]) -> Embeddings:
        rows = finite_rows(self._forward, batch, self._transformer.dtype)
        return Embeddings(np.stack([dense for (dense,) in rows]), np.array([len(ids) for ids in batch], np.int32))

    def _forward(self, batch: Sequence[TokenIds], dtype: torch.dtype) -> list[Row]:
        packed = self._transformer.pack(batch)
        pooled = pool(self._transformer.hidden(packed, dtype), packed, self._pooling)
        return [(row,) for row in unit_rows(pooled.cpu().numpy())]


def load_encoder(folder: Path, tokens: TextTokens, card: ModelCard, placement: Placement, info: ModelInfo) -> Encoder:
    """The encoder in a Hugging Face folder; raises ModelUnavailable where it cannot be loaded."""
    module = load_pretrained(AutoModel, folder, placement, add_pooling_layer=False)
    transformer = Transformer(module, placement.device, computing_dtype(placement))
    return Encoder(transformer, tokens, card, placement, info)
