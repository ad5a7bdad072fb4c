"""The same work without a server: the model, or the whole pipeline, called directly in one process.

Run as a program, since each measurement wants a process of its own: it prints its figures as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from rag.batching import plan_batches
from rag.ids import new_id
from rag.models.base import EmbeddingModel, TokenIds
from rag.models.registry import load_embedder, load_reranker
from rag.settings import ModelSettings
from rag.types import (
    Chunk,
    ChunkingStrategy,
    Embeddings,
    FileRecord,
    IngestedPart,
    IngestJob,
    Kind,
    NewAttachment,
    VectorStoreRecord,
)
from storage.local import LocalStores
from storage.settings import StorageSettings
from tests.bench import texts

OWNER = "local"
CORES = 2


def sentence_transformers(folder: str, dtype: str, count: str) -> dict[str, float]:
    """Tokens are the same on both sides, so the seconds are what is compared."""
    import torch
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(folder, device="cpu", model_kwargs={"dtype": getattr(torch, dtype)})
    chosen = texts.mixed(int(count))
    model.encode(chosen[:64], batch_size=64)
    started = time.perf_counter()
    model.encode(chosen, batch_size=64)
    return {"seconds": time.perf_counter() - started}


def embedding(model_name: str, kind: str, count: str) -> dict[str, float]:
    """Seconds to embed `count` texts (`mixed`, or `chunks` of 200 tokens) on both cores."""
    model = load_embedder(ModelSettings(model=model_name), device="cpu", threads=CORES)
    chosen = texts.mixed(int(count)) if kind == "mixed" else [chunk.text for chunk in chunks(int(count))]
    _embed(model, chosen[:32])
    started = time.perf_counter()
    found = _embed(model, chosen)
    return {"seconds": time.perf_counter() - started, "tokens": float(found.token_counts.sum())}


def reranking(model_name: str, pairs: str, tokens: str) -> dict[str, float]:
    """Documents a second on both cores: one query, passages cut as the service cuts them."""
    model = load_reranker(ModelSettings(model=model_name), device="cpu", threads=CORES)
    passages = [chunk.text for chunk in chunks(int(pairs), tokens=30)]
    query = texts.short(1)[0]
    tokenized = model.tokenize(query, passages, int(tokens) or None)
    started = time.perf_counter()
    with ThreadPoolExecutor(model.workers) as pool:
        list(pool.map(lambda pair: model.score([pair]), tokenized))
    return {"per_second": len(passages) / (time.perf_counter() - started)}


def fill(model_name: str, data_dir: str, count: str) -> dict[str, object]:
    """A store of `count` chunks in files of 20, for the search benchmarks."""
    model = load_embedder(ModelSettings(model=model_name), device="cpu", threads=CORES)
    stores = LocalStores(Path(data_dir), StorageSettings(), threads=CORES)
    now = int(time.time())
    store = stores.create_store(VectorStoreRecord(new_id("vs_"), OWNER, "bench", now, now, model.info))
    all_chunks = chunks(int(count), tokens=30)
    found = _embed(model, [chunk.text for chunk in all_chunks])
    for start in range(0, len(all_chunks), 20):
        record = FileRecord(new_id("file-"), OWNER, f"{start}.txt", 1, "assistants", now, "0" * 64)
        stores.create_file(record)
        stores.attach(OWNER, store.id, NewAttachment(record.id))
        job = IngestJob(store.id, record.id, record.filename, ChunkingStrategy())
        rows = slice(start, start + 20)
        part = Embeddings(found.dense[rows], found.token_counts[rows])
        stores.keep(job, IngestedPart(tuple(all_chunks[rows]), part, len(all_chunks[rows])))
    stores.close()
    return {"store": store.id}


def search(model_name: str, data_dir: str, store_id: str, count: str) -> dict[str, float]:
    """Embed, search, fetch: one caller's median in ms, its stages, and searches a second on both cores."""
    model = load_embedder(ModelSettings(model=model_name), device="cpu", threads=CORES)
    stores = LocalStores(Path(data_dir), StorageSettings(), threads=CORES)
    queries = texts.short(int(count))
    stages: list[tuple[float, float]] = []

    def one(query: str) -> None:
        started = time.perf_counter()
        vectors = model.encode(model.tokenize([query], Kind.QUERY)).dense
        embedded = time.perf_counter()
        hits = stores.search(OWNER, store_id, vectors, model=model.info, limit=10)
        assert len(hits) == 10
        stages.append((embedded - started, time.perf_counter() - embedded))

    for query in queries[:30]:
        one(query)
    stages.clear()
    for query in queries:
        one(query)
    embed, find = np.median(np.array(stages), axis=0) * 1000
    whole = float(np.median(np.array(stages).sum(axis=1))) * 1000
    rate = _rate(one, queries)
    stores.close()
    return {"median_ms": whole, "embed_ms": float(embed), "search_ms": float(find), "per_second": rate}


def _rate(one: Callable[[str], None], queries: Sequence[str]) -> float:
    started = time.perf_counter()
    with ThreadPoolExecutor(CORES) as pool:
        list(pool.map(one, list(queries) * 2))
    return 2 * len(queries) / (time.perf_counter() - started)


def chunks(count: int, tokens: int = 150) -> list[Chunk]:
    """Chunks of about so many tokens."""
    import random

    random_ = random.Random(5)
    made = (texts.passage(random_, tokens) for _ in range(count))
    return [Chunk(i % 20, text, tokens, 0, len(text)) for i, text in enumerate(made)]


def _embed(model: EmbeddingModel, chosen: Sequence[str]) -> Embeddings:
    """All texts, planned by length as the service would, on as many threads as the model takes."""
    tokenized: list[TokenIds] = [model.truncate(ids) for ids in model.tokenize(chosen, Kind.PASSAGE)]
    plan = plan_batches([len(ids) for ids in tokenized], model.max_batch_tokens)
    with ThreadPoolExecutor(model.workers) as pool:
        parts = list(pool.map(lambda batch: model.encode([tokenized[i] for i in batch]), plan))
    order = np.argsort(np.concatenate(plan))
    counts = np.concatenate([part.token_counts for part in parts])
    return Embeddings(np.concatenate([part.dense for part in parts])[order], counts[order])


if __name__ == "__main__":
    work = {f.__name__: f for f in (sentence_transformers, embedding, reranking, fill, search)}
    print(json.dumps(work[sys.argv[1]](*sys.argv[2:])))
