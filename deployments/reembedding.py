"""Stores that another model filled, with the configured model, while no service uses the data directory."""

from __future__ import annotations

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress

from deployments.maintenance import opened
from deployments.settings import Settings
from rag.concurrency import BatchedEmbedder
from rag.models.registry import load_embedder

AT_ONCE = 256  # chunks that are kept in one transaction


async def reembed(settings: Settings, console: Console) -> int:
    """Embed the chunks of every store that another model filled anew, with the configured one, and give the number of
    stores. What is done stays done where this is interrupted; until a store is finished it keeps its old vectors.
    A chunk that is longer than the model's window is embedded cut.

    Raises:
        RagError: there is no database.
        StoreLocked: the service is running.
        StoreDamaged: the database cannot be opened.
    """
    stores = opened(settings)
    embedder = BatchedEmbedder(load_embedder(settings.embedder), settings.embedder)
    try:
        model = await embedder.info()
        stale = stores.stale_stores(model)
        with Progress(*Progress.get_default_columns(), MofNCompleteColumn(), console=console) as progress:
            for record in stale:
                name = f"{record.name or record.id} (was {record.model.id})"
                bar = progress.add_task(name, total=stores.count_without(record.id, model))
                while batch := stores.chunks_without(record.id, model, AT_ONCE):
                    ids, texts = zip(*batch, strict=True)
                    stores.keep_vectors(model, ids, await embedder.embed(texts, truncate=True))
                    progress.update(bar, advance=len(ids))
                stores.swap_model(record.id, model)
        return len(stale)
    finally:
        embedder.close()
        stores.close()
