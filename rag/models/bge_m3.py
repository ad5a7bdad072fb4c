"""BGE-M3: a dense vector and lexical weights from one forward pass, over the weights that FlagEmbedding loads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from rag.models.base import TokenIds
from rag.models.card import ModelCard
from rag.models.forward import finite_rows
from rag.models.placement import Placement
from rag.models.rows import Row, unit_rows
from rag.models.runtime import DTYPES, computing_dtype, loading, workers_and_tokens
from rag.models.tokenization import TextTokens
from rag.models.transformer import Affine, Transformer, pool
from rag.types import Embeddings, Float32, Int32, Kind, ModelInfo, SparseVector

# The heads that tell a folder of this kind from a plain encoder.
HEAD_FILES = ("sparse_linear.pt", "colbert_linear.pt")


class BgeM3:
    """`rag.models.base.EmbeddingModel` with lexical weights: per token of the vocabulary the largest weight that the
    text gives it; special tokens have none."""

    def __init__(
        self,
        transformer: Transformer,
        lexical: Affine,
        special_ids: Sequence[int],
        tokens: TextTokens,
        card: ModelCard,
        placement: Placement,
        info: ModelInfo,
    ) -> None:
        """`lexical` maps a hidden state to a weight, in float32; `info` is completed by the dimension."""
        self.info = replace(info, dimension=transformer.width, has_sparse=True)
        self.workers, self.max_batch_tokens = workers_and_tokens(placement)
        self._transformer = transformer
        self._lexical = lexical
        self._special_ids = np.array(special_ids, np.int32)
        self._tokens = tokens
        self._pooling = card.pooling

    def tokenize(self, texts: Sequence[str], kind: Kind) -> list[TokenIds]:
        return self._tokens.encode(texts, kind)

    def truncate(self, ids: TokenIds) -> TokenIds:
        return self._tokens.truncate(ids)

    def encode(self, batch: Sequence[TokenIds]) -> Embeddings:
        rows = finite_rows(self._forward, batch, self._transformer.dtype)
        return Embeddings(
            np.stack([dense for dense, _ in rows]),
            np.array([len(ids) for ids in batch], np.int32),
            tuple(self._sparse(ids, weights) for ids, (_, weights) in zip(batch, rows, strict=True)),
        )

    @torch.inference_mode()
    def _forward(self, batch: Sequence[TokenIds], dtype: torch.dtype) -> list[Row]:
        packed = self._transformer.pack(batch)
        hidden = self._transformer.hidden(packed, dtype)
        weights = F.linear(hidden, *self._lexical).relu_().squeeze(1).cpu().numpy()
        dense = unit_rows(pool(hidden, packed, self._pooling).cpu().numpy())
        return list(zip(dense, np.split(weights, np.cumsum(packed.lengths)[:-1]), strict=True))

    def _sparse(self, ids: TokenIds, weights: Float32) -> SparseVector:
        kept = (weights > 0) & ~np.isin(ids, self._special_ids)
        indices: Int32
        indices, places = np.unique(ids[kept], return_inverse=True)
        values = np.zeros(len(indices), np.float32)
        np.maximum.at(values, places, weights[kept])
        return SparseVector(indices, values)


def is_bge_m3(folder: Path) -> bool:
    """Whether the folder holds a model of this kind."""
    return all((folder / name).exists() for name in HEAD_FILES)


def load_bge_m3(folder: Path, tokens: TextTokens, card: ModelCard, placement: Placement, info: ModelInfo) -> BgeM3:
    """The model in a folder of BAAI/bge-m3's layout; raises ModelUnavailable where it cannot be loaded."""
    with loading(folder):
        from FlagEmbedding import BGEM3FlagModel

        loaded = BGEM3FlagModel(str(folder), use_fp16=False, devices="cpu", pooling_method=card.pooling)
    module = loaded.model.model.to(DTYPES[placement.dtype])
    transformer = Transformer(module, placement.device, computing_dtype(placement))
    head = loaded.model.sparse_linear
    lexical = Affine(head.weight.detach(), head.bias.detach()).to(torch.float32, transformer.device)
    named = loaded.tokenizer
    special_ids = [named.cls_token_id, named.eos_token_id, named.pad_token_id, named.unk_token_id]
    return BgeM3(transformer, lexical, special_ids, tokens, card, placement, info)
