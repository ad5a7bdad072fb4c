"""Encoders and cross-encoders under ONNX Runtime on the CPU: one unpadded sequence a run, a thread for each worker.

Quantized models scale their activations by what is in the batch; alone, a text's vector depends on nothing else. One
session serves all workers: its weights are held once, and runs do not share state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from rag.errors import ModelUnavailable
from rag.models.base import TokenIds, TokenPair
from rag.models.card import ModelCard
from rag.models.placement import Placement
from rag.models.rows import require_finite, sigmoid, unit_rows
from rag.models.tokenization import PairTokens, TextTokens
from rag.types import Embeddings, Float32, Kind, ModelInfo

# Sequences run one by one, so a batch only saves trips through the queue; small ones spread evenly over the workers.
BATCH_TOKENS = 512


class OnnxSession:
    """A model file and how it is fed: ids and type ids of one sequence in, its first output out."""

    def __init__(self, path: Path) -> None:
        """Raises ModelUnavailable where ONNX Runtime is missing or cannot read the file."""
        try:
            import onnxruntime
            from onnxruntime.capi import onnxruntime_pybind11_state as state
        except ImportError as error:
            raise ModelUnavailable("The engine 'onnx' needs ONNX Runtime: pip install florilegium[cpu]") from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.enable_mem_pattern = False  # every length would leave a pattern behind
        unreadable = (state.Fail, state.InvalidGraph, state.InvalidProtobuf, state.NoSuchFile, state.NotImplemented)
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except unreadable as error:
            raise ModelUnavailable(f"ONNX Runtime cannot read '{path}': {error}") from error
        self._inputs = {item.name for item in self._session.get_inputs()}
        self._output = self._session.get_outputs()[0].name
        self.width = int(self._session.get_outputs()[0].shape[-1])

    def run(self, ids: TokenIds, type_ids: TokenIds | None = None) -> Float32:
        """The output for one sequence, without the batch dimension, in float32."""
        row = ids.astype(np.int64)[None]
        types = np.zeros_like(row) if type_ids is None else type_ids.astype(np.int64)[None]
        feed = {"input_ids": row, "attention_mask": np.ones_like(row), "token_type_ids": types}
        outputs: list[Any] = self._session.run([self._output], {name: feed[name] for name in self._inputs})
        return cast("Float32", outputs[0][0].astype(np.float32, copy=False))


class OnnxEncoder:
    """`rag.models.base.EmbeddingModel` whose output is hidden states, or a sentence vector already."""

    def __init__(
        self, session: OnnxSession, tokens: TextTokens, card: ModelCard, placement: Placement, info: ModelInfo
    ) -> None:
        """`info` is completed by the dimension."""
        self.info = replace(info, dimension=session.width)
        self.workers, self.max_batch_tokens = placement.threads, BATCH_TOKENS
        self._session = session
        self._tokens = tokens
        self._pooling = card.pooling

    def tokenize(self, texts: Sequence[str], kind: Kind) -> list[TokenIds]:
        return self._tokens.encode(texts, kind)

    def truncate(self, ids: TokenIds) -> TokenIds:
        return self._tokens.truncate(ids)

    def encode(self, batch: Sequence[TokenIds]) -> Embeddings:
        dense = unit_rows(np.stack([self._pooled(ids) for ids in batch]))
        for row in dense:
            require_finite((row,))
        return Embeddings(dense, np.array([len(ids) for ids in batch], np.int32))

    def _pooled(self, ids: TokenIds) -> Float32:
        output = self._session.run(ids)
        if output.ndim == 1:
            return output
        return cast("Float32", output[0] if self._pooling == "cls" else output.mean(axis=0))


class OnnxCrossEncoder:
    """`rag.models.base.RerankModel` whose output is one logit."""

    def __init__(self, session: OnnxSession, tokens: PairTokens, placement: Placement, info: ModelInfo) -> None:
        """Raises ModelUnavailable where the model has another number of labels than one."""
        if session.width != 1:
            raise ModelUnavailable(f"The model {info.id} has {session.width} labels; a reranker has one.")
        self.info = info
        self.workers, self.max_batch_tokens = placement.threads, BATCH_TOKENS
        self._session = session
        self._tokens = tokens

    def tokenize(self, query: str, passages: Sequence[str], max_tokens_per_passage: int | None) -> list[TokenPair]:
        return self._tokens.encode(query, passages, max_tokens_per_passage)

    def score(self, batch: Sequence[TokenPair]) -> Float32:
        logits = np.concatenate([self._session.run(pair.ids, pair.type_ids) for pair in batch])
        for logit in logits:
            require_finite((logit,))
        return sigmoid(logits)


def number_format(path: Path) -> str:
    """The format of an ONNX model's weights, told by the operators that the file names."""
    content = path.read_bytes()
    return "int8" if b"MatMulInteger" in content or b"QLinearMatMul" in content else "float32"
