"""One search: embed the queries, find candidates, rerank, cut."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from rag.errors import InvalidRequest, ModelFailed, Retryable, StoreUnavailable
from rag.filters import Filter
from rag.protocols import Embedder, Reranker, VectorStores
from rag.settings import SearchSettings
from rag.types import Float32, Hit, Kind, ModelInfo, SearchResult

MAX_QUERIES = 16
MAX_LIMIT = 50
DEFAULT_LIMIT = 10
DEEPER = 4  # times, where chunks with the same text fill a page
DEEPEST = 10_000  # chunks of a store: a store full of one text must not be read whole for a search
AUTOMATIC_RANKERS = ("auto", "default-2024-11-15")
FUSION_RANKERS = ("rrf", "weighted", "normalized")


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """What to find, and where. `ranker` None means: as the settings say."""

    store_ids: tuple[str, ...]
    queries: tuple[str, ...]
    limit: int = DEFAULT_LIMIT
    where: Filter | None = None
    ranker: str | None = None
    score_threshold: float = 0.0
    rewrite_query: bool = False
    distinct: bool = False  # of chunks with the same text only the best

    def __post_init__(self) -> None:
        """Raises InvalidRequest, naming the field as it is called on the wire."""
        if not 1 <= len(self.queries) <= MAX_QUERIES:
            raise _invalid(f"Expected 1 to {MAX_QUERIES} queries; got {len(self.queries)}.", "query")
        if not all(self.queries):
            raise _invalid("A query is empty.", "query")
        if self.limit < 1:
            raise _invalid(f"Expected at least 1 result; got {self.limit}.", "max_num_results")
        if not 0.0 <= self.score_threshold <= 1.0:
            raise _invalid(f"Expected 0 to 1; got {self.score_threshold}.", "ranking_options.score_threshold")


class SearchPipeline:
    """Answers searches from an embedder, a reranker where there is one, and the stores."""

    def __init__(
        self,
        embedder: Embedder,
        reranker: Reranker | None,
        stores: VectorStores,
        settings: SearchSettings | None = None,
        *,
        reranker_aliases: Sequence[str] = (),
    ) -> None:
        self._embedder = embedder
        self._reranker = reranker
        self._stores = stores
        self._settings = settings or SearchSettings()
        self._reranker_aliases = frozenset(reranker_aliases)

    async def search(self, owner: str, request: SearchRequest) -> SearchResult:
        """One ranking over all the stores, cut once. `timings` has the stages embed, search and rerank.

        Raises:
            InvalidRequest: an unknown ranker, or an expired store.
            NotFound: a store that the owner does not have.
            ModelMismatch: a store was filled with another embedding model than the one served.
            StoreUnavailable: the reranker was asked for by name and gave no answer.
        """
        reranker, by_name = await self._choose_reranker(request.ranker)
        clock = _Clock()
        notes = {"X-Rewrite-Query": "unavailable"} if request.rewrite_query else {}
        with clock.stage("embed"):
            served, (vectors, truncated) = await asyncio.gather(self._embedder.info(), self._embed(request))
        if truncated:
            notes["X-Query-Truncated"] = "true"
        with clock.stage("search"):
            wanted = max(request.limit, self._settings.candidates) if reranker else request.limit
            hits = await self._find(owner, request, vectors, served, wanted)
        if reranker and hits:
            with clock.stage("rerank"):
                hits, note = await self._rerank(reranker, request.queries, hits, by_name=by_name)
            if note:
                notes["X-Rerank"] = note
        kept = [hit for hit in hits if hit.score >= request.score_threshold][: request.limit]
        return SearchResult(tuple(kept), request.queries, clock.seconds, notes)

    async def _find(
        self, owner: str, request: SearchRequest, vectors: Float32, served: ModelInfo, wanted: int
    ) -> list[Hit]:
        """The best `wanted` over all stores; where only distinct ones count, deeper until there are as many, or none
        among the best `DEEPEST`."""
        depth = wanted
        while True:
            searches = (
                self._stores.search(owner, store_id, vectors, model=served, limit=depth, where=request.where)
                for store_id in dict.fromkeys(request.store_ids)
            )
            found = await asyncio.gather(*searches)
            hits = _ranked(hit for hits in found for hit in hits)
            if not request.distinct:
                return hits[:wanted]
            hits = _distinct(hits)
            if len(hits) >= wanted or depth >= DEEPEST or all(len(part) < depth for part in found):
                return hits[:wanted]
            depth = min(DEEPER * depth, DEEPEST)

    async def _choose_reranker(self, ranker: str | None) -> tuple[Reranker | None, bool]:
        """The reranker to use, and whether it was asked for by its own name."""
        ranker = ranker or self._settings.ranker
        if ranker == "none":
            return None, False
        if ranker in AUTOMATIC_RANKERS:
            return self._reranker, False
        if ranker in FUSION_RANKERS:
            message = f"The ranker '{ranker}' fuses vector and keyword search, which is not available here."
            raise _invalid(message, "ranking_options.ranker")
        served = (await self._reranker.info()).id if self._reranker else None
        if ranker == served or ranker in self._reranker_aliases:
            return self._reranker, True
        expected = ["none", *AUTOMATIC_RANKERS, *([served] if served else [])]
        raise _invalid(f"Unknown ranker '{ranker}'. Expected one of: {', '.join(expected)}.", "ranking_options.ranker")

    async def _embed(self, request: SearchRequest) -> tuple[Float32, bool]:
        try:
            return (await self._embedder.embed(request.queries, kind=Kind.QUERY)).dense, False
        except InvalidRequest:
            # Too long for the window: cut, and say so. Only then, since counts of cut texts do not tell.
            return (await self._embedder.embed(request.queries, kind=Kind.QUERY, truncate=True)).dense, True

    async def _rerank(
        self, reranker: Reranker, queries: Sequence[str], hits: list[Hit], *, by_name: bool
    ) -> tuple[list[Hit], str | None]:
        """The hits by relevance; or as they were, with the reason, where the reranker fails and was not named."""
        try:
            return await self._scored(reranker, queries, hits), None
        except InvalidRequest:
            if by_name:
                raise
            return hits, "skipped-query-too-long"
        except (Retryable, ModelFailed) as error:
            if not by_name:
                return hits, "unavailable"
            if isinstance(error, Retryable):
                raise
            raise StoreUnavailable(f"The reranker gave no answer: {error.message}") from error

    async def _scored(self, reranker: Reranker, queries: Sequence[str], hits: list[Hit]) -> list[Hit]:
        """Each query scores the hits that match it best."""
        groups: dict[int, list[Hit]] = {}
        for hit in hits:
            groups.setdefault(hit.query_index, []).append(hit)
        limit = self._settings.rerank_max_tokens
        calls = (
            reranker.rerank(queries[index], [hit.chunk.text for hit in group], max_tokens_per_passage=limit)
            for index, group in groups.items()
        )
        scores = await asyncio.gather(*calls)
        return _ranked(
            replace(hit, score=score)
            for group, answer in zip(groups.values(), scores, strict=True)
            for hit, score in zip(group, answer.values.tolist(), strict=True)
        )


class _Clock:
    """Seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - started


def _ranked(hits: Iterable[Hit]) -> list[Hit]:
    return sorted(hits, key=lambda hit: (-hit.score, hit.chunk_id, hit.store_id))


def _distinct(hits: Iterable[Hit]) -> list[Hit]:
    first: dict[str, Hit] = {}
    for hit in hits:
        first.setdefault(hit.chunk.text, hit)
    return list(first.values())


def _invalid(message: str, param: str) -> InvalidRequest:
    return InvalidRequest(message, param, "invalid_value")
