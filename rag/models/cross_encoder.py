"""Cross-encoders under torch: query and passage read together, one logit, one sigmoid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification

from rag.errors import ModelUnavailable
from rag.models.base import TokenPair
from rag.models.forward import finite_rows
from rag.models.placement import Placement
from rag.models.rows import Row, sigmoid
from rag.models.runtime import computing_dtype, load_pretrained, workers_and_tokens
from rag.models.tokenization import PairTokens
from rag.models.transformer import Transformer, pool
from rag.types import Float32, ModelInfo

# Hidden states of the first tokens, float32 (n, width), to logits (n, 1).
Head = Callable[[Tensor], Tensor]


class CrossEncoder:
    """`rag.models.base.RerankModel` over a sequence classifier with one label. The head computes in float32."""

    def __init__(
        self, transformer: Transformer, head: Head, tokens: PairTokens, placement: Placement, info: ModelInfo
    ) -> None:
        self.info = info
        self.workers, self.max_batch_tokens = workers_and_tokens(placement)
        self._transformer = transformer
        self._head = head
        self._tokens = tokens

    def tokenize(self, query: str, passages: Sequence[str], max_tokens_per_passage: int | None) -> list[TokenPair]:
        return self._tokens.encode(query, passages, max_tokens_per_passage)

    def score(self, batch: Sequence[TokenPair]) -> Float32:
        rows = finite_rows(self._forward, batch, self._transformer.dtype)
        return sigmoid(np.concatenate([logit for (logit,) in rows]))

    @torch.inference_mode()
    def _forward(self, batch: Sequence[TokenPair], dtype: torch.dtype) -> list[Row]:
        packed = self._transformer.pack([pair.ids for pair in batch], [pair.type_ids for pair in batch])
        first = pool(self._transformer.hidden(packed, dtype), packed, "cls")
        return [(logit,) for logit in self._head(first).cpu().numpy()]


def load_cross_encoder(folder: Path, tokens: PairTokens, placement: Placement, info: ModelInfo) -> CrossEncoder:
    """The classifier in a Hugging Face folder.

    Raises:
        ModelUnavailable: it cannot be loaded, or has another number of labels than one.
    """
    module = load_pretrained(AutoModelForSequenceClassification, folder, placement)
    if module.config.num_labels != 1:
        raise ModelUnavailable(f"The model in '{folder}' has {module.config.num_labels} labels; a reranker has one.")
    transformer = Transformer(module.base_model, placement.device, computing_dtype(placement))
    return CrossEncoder(transformer, _head(module, transformer.device), tokens, placement, info)


def _head(module: Any, device: torch.device) -> Head:
    classifier = module.classifier.to(device, torch.float32)
    pooler = getattr(module.base_model, "pooler", None)
    if pooler is None:  # XLM-R: the classifier picks the first token and has a layer of its own before the logit
        return lambda first: classifier(first.unsqueeze(1))
    pooler = pooler.to(device, torch.float32)  # BERT: the pooler does so
    return lambda first: classifier(pooler(first.unsqueeze(1)))
