"""A folder into a vector store, and a question to it, over HTTP with the official client."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

import click
from openai import APIError, OpenAI
from openai.types import StaticFileChunkingStrategyParam, VectorStore
from openai.types.vector_stores import VectorStoreFile
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rag.filters import MAX_TEXT_LENGTH
from rag.settings import FileIngestionParams

LOOK_AGAIN_S = 0.3
PATH, DIGEST = "path", "sha256"  # attributes by which a file is known again


@dataclass(slots=True)
class Outcome:
    """What became of a folder."""

    added: int = 0
    unchanged: int = 0
    chunks: int = 0
    tokens: int = 0
    seconds: float = 0.0
    failed: list[tuple[str, str]] = field(default_factory=list)


def ingest_folder(
    folder: Path, store_name: str, params: FileIngestionParams, *, url: str, key: str, parallel: int, console: Console
) -> Outcome:
    """Upload and attach every file below `folder` that the store does not hold yet in this form; a changed one
    replaces its former self. Hidden files are left out."""
    client = OpenAI(base_url=url, api_key=key, max_retries=8)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not _hidden(path, folder))
    store = _find_store(client, store_name) or client.vector_stores.create(name=store_name)
    known = _attached(client, store.id)
    outcome = Outcome()
    started = time.monotonic()
    with _progress(console) as progress, ThreadPoolExecutor(parallel) as pool:
        bar = progress.add_task(store_name, total=len(files), chunks=0, rate=0.0)
        lock = threading.Lock()
        sizes = StaticFileChunkingStrategyParam(
            max_chunk_size_tokens=params.default_chunk_size_tokens,
            chunk_overlap_tokens=params.default_chunk_overlap_tokens,
        )
        work = {pool.submit(_ingest_file, client, store.id, path, folder, known, sizes): path for path in files}
        for done in as_completed(work):
            with lock:
                _count(outcome, work[done].relative_to(folder).as_posix(), done.result())
            outcome.seconds = time.monotonic() - started
            progress.update(bar, advance=1, chunks=outcome.chunks, rate=outcome.tokens / outcome.seconds)
    outcome.seconds = time.monotonic() - started
    return outcome


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("files, {task.fields[chunks]} chunks, {task.fields[rate]:.0f} tokens/s"),
        TimeRemainingColumn(),
        console=console,
    )


def _hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _find_store(client: OpenAI, name_or_id: str) -> VectorStore | None:
    return next((store for store in client.vector_stores.list(limit=100) if name_or_id in (store.name, store.id)), None)


def _attached(client: OpenAI, store_id: str) -> dict[str, tuple[str, str]]:
    """File id and digest by path, of what this command attached before and was read."""
    files = client.vector_stores.files.list(store_id, limit=100)
    rows = ((file, file.attributes or {}) for file in files if file.status != "failed")
    return {str(row[PATH]): (file.id, str(row.get(DIGEST))) for file, row in rows if PATH in row}


def _ingest_file(
    client: OpenAI,
    store_id: str,
    path: Path,
    folder: Path,
    known: dict[str, tuple[str, str]],
    sizes: StaticFileChunkingStrategyParam,
) -> VectorStoreFile | str | None:
    """The file as attached, None where it was there already, or why it failed."""
    name = path.relative_to(folder).as_posix()[-MAX_TEXT_LENGTH:]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    former_id, former_digest = known.get(name, (None, None))
    if digest == former_digest:
        return None
    try:
        with path.open("rb") as content:
            upload = client.files.create(file=(path.name, content), purpose="assistants")
        attached = client.vector_stores.files.create(
            store_id,
            file_id=upload.id,
            attributes={PATH: name, DIGEST: digest},
            chunking_strategy={"type": "static", "static": sizes},
        )
        while attached.status == "in_progress":
            time.sleep(LOOK_AGAIN_S)
            attached = client.vector_stores.files.retrieve(upload.id, vector_store_id=store_id)
        if attached.status == "completed" and former_id is not None:
            client.files.delete(former_id)
    except APIError as error:
        return error.message
    return attached


def _count(outcome: Outcome, name: str, result: VectorStoreFile | str | None) -> None:
    if result is None:
        outcome.unchanged += 1
    elif isinstance(result, str):
        outcome.failed.append((name, result))
    elif result.status != "completed":
        outcome.failed.append((name, result.last_error.message if result.last_error else result.status))
    else:
        extra = result.model_extra or {}
        outcome.added += 1
        outcome.chunks += int(extra.get("chunk_count", 0))
        outcome.tokens += int(extra.get("token_count", 0))


def print_hits(store_name: str, query: str, *, results: int, ranker: str, url: str, key: str, console: Console) -> None:
    """Ranked excerpts with file, page and score."""
    client = OpenAI(base_url=url, api_key=key)
    store = _find_store(client, store_name)
    if store is None:
        raise click.ClickException(f"There is no vector store '{store_name}' at {url}.")
    page = client.vector_stores.search(
        store.id, query=query, max_num_results=results, extra_body={"ranking_options": {"ranker": ranker}}
    )
    for rank, hit in enumerate(page.data, start=1):
        place = _place(hit.model_extra or {})
        console.print(f"[bold]{rank}. {hit.filename}[/bold]{place}  [dim]score {hit.score:.3f}[/dim]", highlight=False)
        console.print(_excerpt(part.text for part in hit.content), markup=False, highlight=False)
    if not page.data:
        console.print("Nothing found.")


def _place(extra: dict[str, object]) -> str:
    first, last = extra.get("page"), extra.get("page_last")
    if first is None:
        return ""
    return f", page {first}" if last in (None, first) else f", pages {first}–{last}"


def _excerpt(texts: Iterable[str], width: int = 600) -> str:
    text = " ".join(" ".join(texts).split())
    return "   " + (text if len(text) <= width else text[:width] + " …") + "\n"
