"""Speed and memory of the real service, each figure a ratio to the same work without a server in the same run.

`make bench` prints one table. Each side is measured by itself while the other rests, in turns where the machine is
shared with other work, and the median is taken.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from rag.models.registry import load_tokenizer
from rag.models.sources import find_model
from rag.models.unpacking import unpacked
from rag.settings import ModelSettings
from tests.bench import bare, load, texts
from tests.serve.server import Server, serve_run

DEFAULT = "bge-small-en-v1.5"
MINILM = "all-MiniLM-L6-v2"
ROOT = Path(__file__).parents[2]
BATCH = 64
BATCHES = 16
REPEATS = 3

console = Console(width=150)


@dataclass(frozen=True, slots=True)
class Figure:
    """A line of the table."""

    what: str
    value: str
    wanted: str
    how: str


figures: list[Figure] = []


def main(parts: Sequence[str]) -> None:
    """All parts, or those named: throughput, service."""
    with tempfile.TemporaryDirectory(prefix="florilegium-bench-") as folder:
        root = Path(folder)
        if not parts or "service" in parts:
            default_service(made(root / "default"))
        if not parts or "throughput" in parts:
            for model, dtype, wanted in ((MINILM, "float32", 0.95), (MINILM, "bfloat16", 1.6), (DEFAULT, "auto", 2.5)):
                throughput(made(root / f"{model}-{dtype}"), model, dtype, wanted)
    table = Table(title="Florilegium against the same work without a server, on this machine, in this run")
    for heading in ("what", "measured", "wanted", "how"):
        table.add_column(heading)
    for figure in figures:
        table.add_row(figure.what, figure.value, figure.wanted, figure.how)
    console.print(table)


def add(what: str, value: str, wanted: str, how: str) -> None:
    """A line of the table, shown at once too, since the whole takes a while."""
    figures.append(Figure(what, value, wanted, how))
    console.print(f"{what}: {value} (wanted {wanted})", highlight=False)


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def say(text: str) -> None:
    console.print(f"[dim]{text}[/dim]")


def apart(work: str, *arguments: object) -> dict[str, float]:
    """Run one of `bare`'s functions in a process of its own."""
    command = [sys.executable, "-m", "tests.bench.bare", work, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


def median(measure: Callable[[], float], times: int = REPEATS) -> float:
    return statistics.median(measure() for _ in range(times))


# --- tokens a second ------------------------------------------------------------------------------------------------


def throughput(folder: Path, model: str, dtype: str, wanted: float) -> None:
    """Tokens a second through HTTP against sentence-transformers with the same weights in float32."""
    say(f"tokens a second: {model} {dtype}")
    chosen = texts.mixed(BATCH * BATCHES)
    tokenizer = load_tokenizer(ModelSettings(model=model))
    tokens = sum(tokenizer.count(text) + tokenizer.special_tokens for text in chosen)
    weights = float_folder(model)

    def reference() -> float:
        return apart("sentence_transformers", weights, "float32", len(chosen))["seconds"]

    before = reference()
    requests = [
        load.post("/v1/embeddings", {"model": model, "input": batch, "encoding_format": "base64", "truncate": True})
        for batch in texts.batches(chosen, BATCH)
    ]
    with serve_run(folder, args={"embedder": {"model": model, "dtype": dtype}, "reranker": None}) as server:
        load.run(port(server), requests[:8], clients=8)
        ours = median(lambda: load.run(port(server), requests, clients=8).seconds)
    theirs = statistics.median((before, reference(), reference()))
    name = f"{model} {'int8' if dtype == 'auto' else dtype}"
    add(
        f"tokens/s through HTTP, {name}",
        f"{theirs / ours:.2f} x ({tokens / ours:.0f} against {tokens / theirs:.0f})",
        f">= {wanted}",
        f"8 clients, batches of {BATCH}; sentence-transformers float32, same weights, same texts",
    )


def float_folder(model: str) -> Path:
    """A folder with the model's weights in float32."""
    settings = ModelSettings(model=model)
    source = find_model(settings)
    if source.folder is not None:
        return source.folder
    assert source.packaged is not None
    return unpacked(source.name, source.packaged, None)


# --- the embedded default -------------------------------------------------------------------------------------------


def default_service(folder: Path) -> None:
    """Everything that is measured on one running service of the default models."""
    say("filling a store of 10,000 chunks")
    data_dir = made(folder / "data")
    store = str(apart("fill", DEFAULT, data_dir, 10_000)["store"])
    say("the bare pipeline")
    bare_search = apart("search", DEFAULT, data_dir, store, 300)
    bare_rerank = apart("reranking", "ms-marco-MiniLM-L-12-v2", 240, 256)["per_second"]
    with serve_run(folder) as server:
        short_texts(server)
        searches(server, store, bare_search)
        reranked(server, store, bare_rerank)
        one_file(server)
        small_files(server)
        memory(server)


def port(server: Server) -> int:
    return int(server.address.rpartition(":")[2])


def short_texts(server: Server) -> None:
    say("one short text a request")
    requests = [load.post("/v1/embeddings", {"model": DEFAULT, "input": text}) for text in texts.short(1200)]
    load.run(port(server), requests[:200], clients=8)
    alone = median(lambda: load.run(port(server), requests[:300], clients=1).per_second)
    before = metrics(server)
    together = median(lambda: load.run(port(server), requests, clients=32).per_second)
    after = metrics(server)
    size = (after["florilegium_embedder_items"] - before["florilegium_embedder_items"]) / (
        after["florilegium_embedder_batches"] - before["florilegium_embedder_batches"]
    )
    add(
        "texts/s, 32 clients against 1",
        f"{together / alone:.2f} x ({together:.0f} against {alone:.0f}), mean batch {size:.1f}",
        ">= 3",
        f"one text of about 12 tokens a request, {DEFAULT}",
    )


def searches(server: Server, store: str, reference: dict[str, float]) -> None:
    say("searches")
    requests = [search_request(store, text, "none") for text in texts.short(300)]
    load.run(port(server), requests[:100], clients=4)
    before = metrics(server)
    alone = median(lambda: load.run(port(server), requests, clients=1).median_ms)
    stages = stage_ms(before, metrics(server))
    together = median(lambda: load.run(port(server), requests * 2, clients=16).per_second)
    embed, search = stages["embed"] - reference["embed_ms"], stages["search"] - reference["search_ms"]
    add(
        "search at 10,000 chunks, 1 client",
        f"+{alone - reference['median_ms']:.1f} ms ({alone:.1f} against {reference['median_ms']:.1f} ms)",
        "<= 8 ms more",
        f"means: embed {reference['embed_ms']:.1f} ms + hop {embed:.1f}, find {reference['search_ms']:.1f} + hop "
        f"{search:.1f}, HTTP {alone - stages['embed'] - stages['search']:.1f}",
    )
    add(
        "searches/s at 10,000 chunks, 16 clients",
        f"{together / reference['per_second']:.0%} ({together:.0f} against {reference['per_second']:.0f})",
        ">= 60 %",
        "the bare pipeline on both cores in one process",
    )


def search_request(store: str, query: str, ranker: str) -> bytes:
    return load.post(f"/v1/vector_stores/{store}/search", {"query": query, "ranking_options": {"ranker": ranker}})


def reranked(server: Server, store: str, reference: float) -> None:
    say("reranked searches")
    requests = [search_request(store, text, "auto") for text in texts.short(60)]
    load.run(port(server), requests[:4], clients=2)
    alone = load.run(port(server), requests[:20], clients=1).median_ms
    before = metrics(server)
    found = load.run(port(server), requests, clients=8)
    documents = metrics(server)["florilegium_reranker_items"] - before["florilegium_reranker_items"]
    rate = documents / found.seconds
    add(
        "documents/s of reranked searches, 8 clients",
        f"{rate / reference:.0%} ({rate:.0f} against {reference:.0f}); one search alone {alone:.0f} ms",
        "-",
        "the bare reranker on both cores",
    )


def one_file(server: Server) -> None:
    say("one file of 1,000 chunks")
    chunks = bare.chunks(1000)
    whole = "\n\n".join(chunk.text for chunk in chunks)
    client = server.client
    store = client.vector_stores.create(name="one")
    ours, count = ingest(server, store.id, [("one.txt", whole.encode())])
    reference = apart("embedding", DEFAULT, "chunks", count)["seconds"]
    add(
        f"one file of {count} chunks",
        f"{ours / reference:.2f} x ({ours:.1f} against {reference:.1f} s)",
        "<= 1.3",
        "upload to completed, against embedding as many such chunks",
    )


def small_files(server: Server) -> None:
    say("100 small files, one by one")
    chunks = bare.chunks(100)
    store = server.client.vector_stores.create(name="small")
    ours, _ = ingest(server, store.id, [(f"{i}.txt", chunk.text.encode()) for i, chunk in enumerate(chunks)])
    reference = apart("embedding", DEFAULT, "chunks", len(chunks))["seconds"]
    extra = (ours - 1.3 * reference) / len(chunks) * 1000
    add(
        "100 small files one by one",
        f"1.3 x + {extra:.0f} ms a file ({ours:.1f} against {reference:.1f} s)",
        "<= 1.3 x + 50 ms",
        "upload, attach and completed, against embedding their texts",
    )


def ingest(server: Server, store_id: str, files: Sequence[tuple[str, bytes]]) -> tuple[float, int]:
    """Seconds from the first upload to the last completed file, and how many chunks there are then."""
    import time

    small = {"type": "static", "static": {"max_chunk_size_tokens": 260, "chunk_overlap_tokens": 0}}
    chunks = 0
    with httpx.Client(base_url=server.address, timeout=300) as http:
        started = time.perf_counter()
        for file in files:
            upload = http.post("/v1/files", data={"purpose": "assistants"}, files={"file": file}).json()
            path = f"/v1/vector_stores/{store_id}/files"
            attached = http.post(path, json={"file_id": upload["id"], "chunking_strategy": small}).json()
            while attached["status"] == "in_progress":
                time.sleep(0.05)
                attached = http.get(f"{path}/{upload['id']}").json()
            assert attached["status"] == "completed", attached
            chunks += attached["chunk_count"]
        return time.perf_counter() - started, chunks


def memory(server: Server) -> None:
    """The peak of every process that the service started."""
    found: list[tuple[int, str]] = []
    for process in server.tree():
        status = Path(f"/proc/{process.pid}/status").read_text()
        peak = re.search(r"VmHWM:\s+(\d+) kB", status)
        if peak is not None:
            found.append((int(peak[1]) // 1024, short_name(process.cmdline())))
    found.sort(reverse=True)
    add("peak memory of all processes", f"{sum(size for size, _ in found)} MiB", "-", f"{len(found)} processes")
    for size, name in found:
        if size >= 20:
            add(f"  {name}", f"{size} MiB", "-", "")


def short_name(command: Sequence[str]) -> str:
    name = command[0] if command else "?"
    if name.startswith("ray::"):
        return name
    words = [Path(word).name for word in command if not word.startswith("-")]
    return " ".join(words[:3])[:50]


def metrics(server: Server) -> dict[str, float]:
    text = httpx.get(f"{server.address}/metrics", timeout=60).text
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, value in lines}


def stage_ms(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """Mean milliseconds of each stage between two readings."""

    def mean(stage: str) -> float:
        key = f'florilegium_stage_seconds_{{}}{{{{stage="{stage}"}}}}'
        total, count = (after[key.format(part)] - before.get(key.format(part), 0) for part in ("sum", "count"))
        return total / count * 1000

    return {stage: mean(stage) for stage in ("embed", "search")}


if __name__ == "__main__":
    main(sys.argv[1:])
