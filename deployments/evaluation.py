"""Retrieval quality of the service's own parts on a collection: `florilegium evaluate`."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from deployments.local import local_service
from deployments.settings import Settings
from rag.evaluation import Collection, Document, load_collection, measure
from rag.search import SearchRequest
from rag.service import NewVectorStore, RagService
from rag.settings import ModelSettings
from rag.types import FileStatus, NewAttachment

DEPTH = 100
PARALLEL = 8
OWNER = "evaluation"

Ranking = list[tuple[str, float]]
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Row:
    """One way to search, and how well it did."""

    ranker: str
    measures: dict[str, float]
    median_ms: float


def evaluate(dataset: Path, *, model: str | None, reranker: str | None, limit: int | None, console: Console) -> None:
    """Ingest `dataset` into a store of its own, in a temporary folder, and print what the rankers find."""
    collection = load_collection(dataset)
    if limit is not None:
        queries = dict(list(collection.queries.items())[:limit])
        judgments = {query: collection.judgments[query] for query in queries}
        collection = Collection(collection.name, collection.documents, queries, judgments)
    with tempfile.TemporaryDirectory(prefix="florilegium-") as folder:
        settings = _settings(Path(folder), model, reranker)
        rows = asyncio.run(_run(settings, collection, console))
    _print(settings, collection, rows, console)


def _settings(data_dir: Path, model: str | None, reranker: str | None) -> Settings:
    settings = Settings(data_dir=data_dir)
    changes: dict[str, ModelSettings | None] = {}
    if model is not None:
        changes["embedder"] = ModelSettings(model=model)
    if reranker is not None:
        changes["reranker"] = None if reranker == "none" else ModelSettings(model=reranker)
    return settings.model_copy(update=changes)


async def _run(settings: Settings, collection: Collection, console: Console) -> list[Row]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        async with local_service(settings) as service:
            store = await service.create_store(OWNER, NewVectorStore(name=collection.name))

            async def ingest(document: Document) -> None:
                await _ingest(service, store.id, document)

            await _each(progress, "documents", collection.documents, ingest)
            dense = await _search_all(progress, service, store.id, collection, "none", DEPTH)
            rows = [_row("none", collection, dense)]
            if settings.reranker is not None:
                depth = settings.search.candidates
                reranked = await _search_all(progress, service, store.id, collection, "auto", depth)
                # The page that a search answers, and below it the rest as the vectors rank it.
                whole = {query: (_followed(ranking, dense[query][0]), s) for query, (ranking, s) in reranked.items()}
                rows.append(_row(settings.reranker.model, collection, whole))
            return rows


async def _ingest(service: RagService, store_id: str, document: Document) -> None:
    async def content() -> AsyncIterator[bytes]:
        yield document.full_text.encode()

    received = await service.receive_file(f"{document.id}.txt", content())
    record = await service.create_file(OWNER, received, purpose="assistants")
    attached = await service.attach(OWNER, store_id, NewAttachment(record.id))
    while attached.status is FileStatus.IN_PROGRESS:
        await asyncio.sleep(0.2)
        attached = await service.get_attachment(OWNER, store_id, record.id)
    if attached.status is not FileStatus.COMPLETED:
        raise RuntimeError(f"document {document.id} was not ingested: {attached.last_error}")


async def _search_all(
    progress: Progress, service: RagService, store_id: str, collection: Collection, ranker: str, depth: int
) -> dict[str, tuple[Ranking, float]]:
    found: dict[str, tuple[Ranking, float]] = {}

    async def search(query: tuple[str, str]) -> None:
        started = time.perf_counter()
        request = SearchRequest((store_id,), (query[1],), limit=depth, ranker=ranker)
        result = await service.search(OWNER, request)
        ranking = [(hit.filename.removesuffix(".txt"), hit.score) for hit in result.hits]
        found[query[0]] = (ranking, time.perf_counter() - started)

    await _each(progress, f"queries, ranker {ranker}", tuple(collection.queries.items()), search, parallel=1)
    return found


def _followed(page: Ranking, rest: Ranking) -> Ranking:
    """`page`, then what of `rest` it does not hold, with scores that keep this order."""
    shown = {document for document, _ in page}
    below = [(document, score - 2.0) for document, score in rest if document not in shown]
    return page + below


def _row(ranker: str, collection: Collection, found: dict[str, tuple[Ranking, float]]) -> Row:
    measures = measure(collection.judgments, {query: ranking for query, (ranking, _) in found.items()})
    seconds = sorted(took for _, took in found.values())
    return Row(ranker, measures, seconds[len(seconds) // 2] * 1000)


async def _each(
    progress: Progress, name: str, items: Sequence[T], work: Callable[[T], Awaitable[R]], parallel: int = PARALLEL
) -> None:
    """Work through the items, `parallel` at once."""
    bar = progress.add_task(name, total=len(items))
    waiting = iter(items)

    async def worker() -> None:
        for item in waiting:
            await work(item)
            progress.advance(bar)

    async with asyncio.TaskGroup() as group:
        for _ in range(parallel):
            group.create_task(worker())


def _print(settings: Settings, collection: Collection, rows: Sequence[Row], console: Console) -> None:
    title = f"{collection.name}: {len(collection.documents)} documents, {len(collection.queries)} queries"
    table = Table(title=f"{title}; {settings.embedder.model}")
    for heading in ("ranker", *rows[0].measures, "median ms"):
        table.add_column(heading, justify="left" if heading == "ranker" else "right")
    for row in rows:
        table.add_row(row.ranker, *(f"{value:.4f}" for value in row.measures.values()), f"{row.median_ms:.0f}")
    console.print(table)
