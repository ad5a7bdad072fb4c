"""What the served models are asked for directly: vectors, rankings, their names, and whether they answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rag.errors import InvalidRequest, NotFound
from rag.protocols import Embedder, Reranker
from rag.types import Embeddings, Kind, ModelInfo

MAX_INPUTS = 2048
MAX_DOCUMENTS = 10_000

DecodeTokens = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as clients see it."""

    info: ModelInfo
    task: str  # "embedding" or "rerank"


@dataclass(frozen=True, slots=True)
class Ranking:
    """Documents by relevance: pairs of index in the request and score in [0, 1], best first, ties by index."""

    model: str
    results: tuple[tuple[int, float], ...]
    token_count: int


class Inference:
    """The served models under the ids that clients may use."""

    def __init__(
        self,
        embedder: Embedder,
        reranker: Reranker | None,
        *,
        embedder_aliases: Sequence[str] = (),
        reranker_aliases: Sequence[str] = (),
        decode_tokens: DecodeTokens | None = None,
    ) -> None:
        """`decode_tokens` turns token ids into the text they spell; None refuses token ids."""
        self.embedder = embedder
        self.reranker = reranker
        self._embedder_aliases = frozenset(embedder_aliases)
        self._reranker_aliases = frozenset(reranker_aliases)
        self._decode_tokens = decode_tokens

    async def embed(
        self,
        model: str,
        inputs: Sequence[str | Sequence[int]],
        *,
        kind: Kind = Kind.PASSAGE,
        truncate: bool = False,
        dimensions: int | None = None,
    ) -> Embeddings:
        """One row per input.

        Raises:
            NotFound: another embedding model than the one served.
            InvalidRequest: no input, too many, an empty one, one that is too long, or a size the model does not have.
        """
        info = await self.embedder.info()
        _check_model(model, info, self._embedder_aliases)
        if dimensions not in (None, info.dimension):
            message = f"'{info.id}' gives vectors of {info.dimension} dimensions and no other size; got {dimensions}."
            raise InvalidRequest(message, "dimensions", "invalid_value")
        if not 1 <= len(inputs) <= MAX_INPUTS:
            message = f"Expected 1 to {MAX_INPUTS} inputs; got {len(inputs)}."
            raise InvalidRequest(message, "input", "invalid_value")
        return await self.embedder.embed(self._texts(inputs), kind=kind, truncate=truncate)

    def _texts(self, inputs: Sequence[str | Sequence[int]]) -> list[str]:
        texts = [each if isinstance(each, str) else self._decode(each) for each in inputs]
        for index, text in enumerate(texts):
            if not text:
                raise InvalidRequest(f"Input {index} is empty.", f"input[{index}]", "invalid_value")
        return texts

    def _decode(self, ids: Sequence[int]) -> str:
        if self._decode_tokens is None:
            raise InvalidRequest(
                "Token ids are not accepted as input; send text. In LangChain's OpenAIEmbeddings that is "
                "check_embedding_ctx_length=False.",
                "input",
                "invalid_type",
            )
        return self._decode_tokens(ids)

    async def rerank(
        self,
        model: str | None,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        max_tokens_per_document: int | None = None,
    ) -> Ranking:
        """The documents' indices, best first. `model` None means the one that is served; `top_n` None means all.

        Raises:
            NotFound: another reranking model than the one served, or none is.
            InvalidRequest: an empty query, no documents or too many, or `top_n` below 1.
        """
        if self.reranker is None:
            raise NotFound("No reranking model is served.", "model", "model_not_found")
        info = await self.reranker.info()
        _check_model(model or info.id, info, self._reranker_aliases)
        if not query:
            raise InvalidRequest("The query is empty.", "query", "invalid_value")
        if not 1 <= len(documents) <= MAX_DOCUMENTS:
            message = f"Expected 1 to {MAX_DOCUMENTS} documents; got {len(documents)}."
            raise InvalidRequest(message, "documents", "invalid_value")
        if top_n is not None and top_n < 1:
            raise InvalidRequest(f"Expected at least 1; got {top_n}.", "top_n", "integer_below_min_value")
        scores = await self.reranker.rerank(query, documents, max_tokens_per_passage=max_tokens_per_document)
        order = np.argsort(-scores.values, kind="stable")[:top_n]
        results = zip(order.tolist(), scores.values[order].tolist(), strict=True)
        return Ranking(info.id, tuple(results), scores.token_count)

    async def models(self) -> tuple[ServedModel, ...]:
        """The embedding model, and the reranking model where there is one."""
        served = [ServedModel(await self.embedder.info(), "embedding")]
        if self.reranker is not None:
            served.append(ServedModel(await self.reranker.info(), "rerank"))
        return tuple(served)

    async def model(self, name: str) -> ServedModel:
        """A served model by its id or an alias; raises NotFound."""
        for served in await self.models():
            aliases = self._embedder_aliases if served.task == "embedding" else self._reranker_aliases
            if name == served.info.id or name in aliases:
                return served
        raise _no_model(name)

    async def probe(self) -> None:
        """Embed and rerank one word through the real queues; raises what they raise."""
        await self.embedder.embed(["ready"], kind=Kind.QUERY)
        if self.reranker is not None:
            await self.reranker.rerank("ready", ["ready"])


def _check_model(name: str, info: ModelInfo, aliases: frozenset[str]) -> None:
    if name != info.id and name not in aliases:
        raise _no_model(name, info.id)


def _no_model(name: str, served: str | None = None) -> NotFound:
    hint = f" '{served}' is served for this." if served else ""
    return NotFound(f"The model '{name}' does not exist.{hint}", "model", "model_not_found")
