"""What a model must offer to be served: synchronous, one forward pass at a time, knowing nothing of queues.

All methods may be called from any thread. `workers` says how many calls of `encode` or `score` at once are worth it;
each priority has so many threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rag.types import Embeddings, Float32, Kind, ModelInfo

TokenIds = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class TokenPair:
    """A query and a passage as one sequence: `ids` and `type_ids` int32 (n,), special tokens included."""

    ids: TokenIds
    type_ids: TokenIds


class TextTokenizer(Protocol):
    """The embedding model's tokenizer, light enough for processes that hold no model. Special tokens that a text
    spells out are ordinary text."""

    max_tokens: int  # the model's window, special tokens and the longest prefix included
    special_tokens: int  # how many tokens a passage costs beyond its own: special tokens and prefix

    def count(self, text: str) -> int:
        """The number of tokens of the bare text."""
        ...

    def spans(self, text: str) -> npt.NDArray[np.int32]:
        """Where each token of the bare text lies: int32 (n, 2), start and end in characters, ascending."""
        ...


class EmbeddingModel(Protocol):
    """Token ids to vectors."""

    info: ModelInfo
    workers: int
    max_batch_tokens: int  # what one forward pass should cost at most, padding included

    def tokenize(self, texts: Sequence[str], kind: Kind) -> list[TokenIds]:
        """Prefix and special tokens included; never cut."""
        ...

    def truncate(self, ids: TokenIds) -> TokenIds:
        """Cut to the window, the closing special token kept."""
        ...

    def encode(self, batch: Sequence[TokenIds]) -> Embeddings:
        """One forward pass. Raises ModelFailed where an output is not finite."""
        ...


class RerankModel(Protocol):
    """Pairs to relevance."""

    info: ModelInfo
    workers: int
    max_batch_tokens: int

    def tokenize(self, query: str, passages: Sequence[str], max_tokens_per_passage: int | None) -> list[TokenPair]:
        """One pair per passage, the passage cut where the pair would be over the window.

        Raises:
            InvalidRequest: the query leaves no room for a passage.
        """
        ...

    def score(self, batch: Sequence[TokenPair]) -> Float32:
        """float32 (n,), sigmoid of the logit, computed once and in float32. Raises ModelFailed where not finite."""
        ...
