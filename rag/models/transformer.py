"""The forward pass of BERT and XLM-R over sequences laid end to end, so that no work is done for padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it

from rag.errors import ModelUnavailable
from rag.models.base import TokenIds
from rag.models.card import OFFSET_POSITIONS, Pooling, position_offset

SUPPORTED = OFFSET_POSITIONS | {"bert"}

# Attention kernels for masked batches want lengths that are a multiple of this.
ALIGNMENT = 8


class Affine(NamedTuple):
    """Weight and bias of a linear layer or of a normalisation."""

    weight: Tensor
    bias: Tensor

    def to(self, dtype: torch.dtype, device: torch.device | None = None) -> Affine:
        return Affine(self.weight.to(device, dtype), self.bias.to(device, dtype))


class Layer(NamedTuple):
    """One transformer layer. `qkv` is query, key and value in one matrix."""

    qkv: Affine
    attended: Affine
    attended_norm: Affine
    widened: Affine
    narrowed: Affine
    narrowed_norm: Affine

    def to(self, dtype: torch.dtype) -> Layer:
        return Layer(*(part.to(dtype) for part in self))


@dataclass(frozen=True, slots=True)
class Packed:
    """Sequences laid end to end: `ids`, `type_ids`, `positions` (within the sequence) and `rows` (which sequence)
    are int64 (tokens,) on the model's device."""

    ids: Tensor
    type_ids: Tensor
    positions: Tensor
    rows: Tensor
    lengths: tuple[int, ...]


class Transformer:
    """The weights of a Hugging Face encoder, and the forward pass over them."""

    def __init__(self, module: Any, device: str, dtype: torch.dtype) -> None:
        """Take the weights of `module` (BertModel, XLMRobertaModel) over to `device` in `dtype`.

        Raises:
            ModelUnavailable: an architecture, or a variant of one, that is not supported.
        """
        config = module.config
        if config.model_type not in SUPPORTED or getattr(config, "position_embedding_type", "absolute") != "absolute":
            raise ModelUnavailable(
                f"Models of type '{config.model_type}' are not supported; supported are {', '.join(sorted(SUPPORTED))} "
                "with absolute positions."
            )
        self.device = torch.device(device)
        self.dtype = dtype
        self.width = int(config.hidden_size)
        self._heads = int(config.num_attention_heads)
        self._epsilon = float(config.layer_norm_eps)
        self._activation = _activation(config.hidden_act)
        self._first_position = position_offset(config.to_dict())
        weights = {name: array.to(self.device, dtype) for name, array in module.state_dict().items()}
        self._words = weights["embeddings.word_embeddings.weight"]
        self._positions = weights["embeddings.position_embeddings.weight"]
        self._types = weights["embeddings.token_type_embeddings.weight"]
        self._norm = _affine(weights, "embeddings.LayerNorm")
        self._layers = [_layer(weights, f"encoder.layer.{index}") for index in range(config.num_hidden_layers)]

    def pack(self, batch: Sequence[TokenIds], type_ids: Sequence[TokenIds] | None = None) -> Packed:
        """Lay the sequences end to end on the device."""
        lengths = tuple(map(len, batch))
        counts = np.array(lengths)
        rows = np.repeat(np.arange(len(batch)), counts)
        positions = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        types = np.zeros_like(rows) if type_ids is None else np.concatenate(type_ids)
        parts = np.stack([np.concatenate(batch), types, positions, rows]).astype(np.int64)
        ids, type_row, position_row, row_row = torch.from_numpy(parts).to(self.device)
        return Packed(ids, type_row, position_row, row_row, lengths)

    @torch.inference_mode()
    def hidden(self, packed: Packed, dtype: torch.dtype) -> Tensor:
        """The last hidden state, float32 (tokens, width), computed in `dtype`."""
        attend = _attend_each if self.device.type == "cpu" else _attend_padded
        shape = (self.width,)
        norm = self._norm.to(dtype)
        state = F.embedding(packed.ids, self._words) + F.embedding(packed.type_ids, self._types)
        state += F.embedding(packed.positions + self._first_position, self._positions)
        state = F.layer_norm(state.to(dtype), shape, *norm, self._epsilon)
        for stored in self._layers:
            layer = stored.to(dtype)
            attended = attend(F.linear(state, *layer.qkv), packed, self._heads)
            attended = F.linear(attended, *layer.attended).add_(state)
            state = F.layer_norm(attended, shape, *layer.attended_norm, self._epsilon)
            wide = self._activation(F.linear(state, *layer.widened))
            narrow = F.linear(wide, *layer.narrowed).add_(state)
            state = F.layer_norm(narrow, shape, *layer.narrowed_norm, self._epsilon)
        return state.float()


@torch.inference_mode()
def pool(hidden: Tensor, packed: Packed, pooling: Pooling) -> Tensor:
    """The first token's state of each sequence, or the mean over its tokens: float32 (sequences, width)."""
    if pooling == "cls":
        return hidden[packed.positions == 0]
    sums = hidden.new_zeros(len(packed.lengths), hidden.shape[1]).index_add_(0, packed.rows, hidden)
    return sums / hidden.new_tensor(packed.lengths).unsqueeze(1)


def _activation(name: str) -> Any:
    from transformers.activations import ACT2FN

    return ACT2FN[name]


def _affine(weights: dict[str, Tensor], *names: str) -> Affine:
    return Affine(*(torch.cat([weights[f"{name}.{part}"] for name in names]) for part in ("weight", "bias")))


def _layer(weights: dict[str, Tensor], at: str) -> Layer:
    return Layer(
        qkv=_affine(weights, *(f"{at}.attention.self.{part}" for part in ("query", "key", "value"))),
        attended=_affine(weights, f"{at}.attention.output.dense"),
        attended_norm=_affine(weights, f"{at}.attention.output.LayerNorm"),
        widened=_affine(weights, f"{at}.intermediate.dense"),
        narrowed=_affine(weights, f"{at}.output.dense"),
        narrowed_norm=_affine(weights, f"{at}.output.LayerNorm"),
    )


def _attend_each(qkv: Tensor, packed: Packed, heads: int) -> Tensor:
    """Attention one sequence at a time: on a CPU a call costs little, and padding much."""
    width = qkv.shape[1] // 3
    attended = qkv.new_empty(len(qkv), width)
    lengths = list(packed.lengths)
    for part, out in zip(torch.split(qkv, lengths), torch.split(attended, lengths), strict=True):
        found = _attend(part.view(1, len(part), 3, heads, width // heads), None)
        out.copy_(found.reshape(len(part), width))
    return attended


def _attend_padded(qkv: Tensor, packed: Packed, heads: int) -> Tensor:
    """Attention over all sequences at once, padded for this step alone: on a GPU a call costs more than padding."""
    width = qkv.shape[1] // 3
    count, longest = len(packed.lengths), max(packed.lengths)
    if min(packed.lengths) == longest:  # nothing to pad, and without a mask the quickest kernels serve
        return _attend(qkv.view(count, longest, 3, heads, width // heads), None).reshape(count * longest, width)
    longest = -(-longest // ALIGNMENT) * ALIGNMENT
    slots = packed.rows * longest + packed.positions
    padded = qkv.new_zeros(count * longest, 3 * width)
    padded[slots] = qkv
    real = torch.zeros(count * longest, dtype=torch.bool, device=qkv.device)
    real[slots] = True
    found = _attend(padded.view(count, longest, 3, heads, width // heads), real.view(count, 1, 1, longest))
    return found.reshape(count * longest, width)[slots]


def _attend(qkv: Tensor, mask: Tensor | None) -> Tensor:
    """(sequences, tokens, 3, heads, size) to (sequences, tokens, heads, size)."""
    query, key, value = qkv.permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2)
