"""Speed and memory of the real service, each figure a ratio to the same work without a server in the same run.

`make bench` prints one table. Each side is measured by itself while the other rests, in turns where the machine is
shared with other work, and the median is taken.
"""

from __future__ import annotations

import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
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
from tests.serve.server import Server, launched, serve_run

DEFAULT = "bge-small-en-v1.5"
MINILM = "all-MiniLM-L6-v2"
ROOT = Path(__file__).parents[2]
BATCH = 64
BATCHES = 8
REPEATS = 3
TURNS = 5

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
    theirs = statistics.mean((before, reference()))
    name = f"{model} {'int8' if dtype == 'auto' else dtype}"
    add(
        f"tokens/s through HTTP, {name}",
        f"{theirs / ours:.2f} x ({tokens / ours:.0f} against {tokens / theirs:.0f})",
        f">= {wanted}",
        f"8 clients, batches of {BATCH}; sentence-transformers float32 before and after, same weights, same texts",
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
    copy = folder / "copy"  # for the bare pipeline, since a data directory has one owner
    shutil.copytree(data_dir, copy)
    with launched(folder) as server:
        short_texts(server)
        searches(server, store, copy)
        reranked(server, store)
        one_file(server)
        small_files(server)
        ingestion(server, store)
        memory(server)


def port(server: Server) -> int:
    return int(server.address.rpartition(":")[2])


def short_texts(server: Server) -> None:
    say("one short text a request")
    requests = [load.post("/v1/embeddings", {"model": DEFAULT, "input": text}) for text in texts.short(1200)]
    load.run(port(server), requests[:200], clients=8)
    alone, together = [], []
    sizes = []
    for _ in range(TURNS):
        alone.append(load.run(port(server), requests[:300], clients=1).per_second)
        before = metrics(server)
        together.append(load.run(port(server), requests, clients=32).per_second)
        sizes.append(ratio_of(before, metrics(server), "florilegium_embedder_items", "florilegium_embedder_batches"))
    ratio = statistics.median(many / one for one, many in zip(alone, together, strict=True))
    add(
        "texts/s, 32 clients against 1",
        f"{ratio:.2f} x ({middle(together):.0f} against {middle(alone):.0f}), mean batch {middle(sizes):.1f}",
        ">= 3",
        f"one text of about 12 tokens a request, {DEFAULT}; {TURNS} turns",
    )


def searches(server: Server, store: str, copy: Path) -> None:
    """In turns, because the machine may be faster at one time than at another."""
    say("searches, and the bare pipeline, in turns")
    requests = [search_request(store, text, "none") for text in texts.short(300)]
    load.run(port(server), requests[:100], clients=4)
    references, alone, together, stages = [], [], [], []
    for _ in range(TURNS):
        references.append(apart("search", DEFAULT, copy, store, 300))
        before = metrics(server)
        alone.append(load.run(port(server), requests, clients=1).median_ms)
        after = metrics(server)
        stages.append(stage_ms(before, after))
        stages[-1]["compute"] = 1000 * ratio_of(
            before, after, "florilegium_embedder_compute_s", "florilegium_embedder_batches"
        )
        together.append(load.run(port(server), requests * 2, clients=16).per_second)
    more = statistics.median(ours - bare["median_ms"] for ours, bare in zip(alone, references, strict=True))
    share = statistics.median(ours / bare["per_second"] for ours, bare in zip(together, references, strict=True))
    bare_ms, bare_rate, bare_embed, bare_find = (
        middle([one[name] for one in references]) for name in ("median_ms", "per_second", "embed_ms", "search_ms")
    )
    embed, find, compute = (middle([one[name] for one in stages]) for name in ("embed", "search", "compute"))
    add(
        "search at 10,000 chunks, 1 client",
        f"+{more:.1f} ms ({middle(alone):.1f} against {bare_ms:.1f} ms)",
        "<= 8 ms more",
        f"embed: model {bare_embed:.1f} ms bare, {compute:.1f} here, hop {embed - compute:.1f}; find: {bare_find:.1f} "
        f"bare, {find:.1f} with its hop; HTTP {middle(alone) - embed - find:.1f}",
    )
    add(
        "searches/s at 10,000 chunks, 16 clients",
        f"{share:.0%} ({middle(together):.0f} against {bare_rate:.0f})",
        ">= 60 %",
        f"the bare pipeline on both cores in one process; {TURNS} turns",
    )


def middle(values: Sequence[float]) -> float:
    return statistics.median(values)


def ratio_of(before: dict[str, float], after: dict[str, float], above: str, below: str) -> float:
    """How much one counter grew for each unit that another did."""
    return (after[above] - before[above]) / (after[below] - before[below])


def search_request(store: str, query: str, ranker: str) -> bytes:
    return load.post(f"/v1/vector_stores/{store}/search", {"query": query, "ranking_options": {"ranker": ranker}})


def reranked(server: Server, store: str) -> None:
    say("reranked searches")
    reference = apart("reranking", "ms-marco-MiniLM-L-12-v2", 720, 256)["per_second"]
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
        "the bare reranker on both cores, on chunks of the same length",
    )


def one_file(server: Server) -> None:
    say("one file of 1,000 chunks")
    chunks = bare.chunks(1000)
    whole = "\n\n".join(chunk.text for chunk in chunks)
    client = server.client
    store = client.vector_stores.create(name="one")
    before = metrics(server)
    ours, count = ingest(server, store.id, [("one.txt", whole.encode())])
    shares = ingest_shares(before, metrics(server))
    reference = apart("embedding", DEFAULT, "chunks", count)["seconds"]
    add(
        f"one file of {count} chunks",
        f"{ours / reference:.2f} x ({ours:.1f} against {reference:.1f} s)",
        "<= 1.3",
        f"upload to completed, against embedding as many such chunks; {shares}",
    )


def small_files(server: Server) -> None:
    say("100 small files, one by one")
    chunks = bare.chunks(100)
    store = server.client.vector_stores.create(name="small")
    before = metrics(server)
    ours, _ = ingest(server, store.id, [(f"{i}.txt", chunk.text.encode()) for i, chunk in enumerate(chunks)])
    shares = ingest_shares(before, metrics(server))
    reference = apart("embedding", DEFAULT, "chunks", len(chunks))["seconds"]
    extra = (ours - 1.3 * reference) / len(chunks) * 1000
    add(
        "100 small files one by one",
        f"1.3 x + {extra:.0f} ms a file ({ours:.1f} against {reference:.1f} s)",
        "<= 1.3 x + 50 ms",
        f"upload, attach and completed, {len(chunks) / ours:.1f} files/s, against embedding their texts; {shares}",
    )


INGEST_STAGES = ("read", "chunk", "embed", "write")


def ingest_shares(before: dict[str, float], after: dict[str, float]) -> str:
    """How the time of ingestion was spent, by stage."""
    names = {stage: f"florilegium_store_ingest_{stage}_s" for stage in INGEST_STAGES}
    spent = {stage: after[name] - before.get(name, 0.0) for stage, name in names.items()}
    whole = sum(spent.values())
    return ", ".join(f"{stage} {seconds / whole:.0%}" for stage, seconds in spent.items())


def ingestion(server: Server, store: str) -> None:
    """Searches and a look at the store, idle and while 10,000 chunks are being ingested into another one."""
    say("searches while 10,000 chunks are ingested")
    searches = [search_request(store, text, "none") for text in texts.short(60)]
    client = server.client
    filled = client.vector_stores.create(name="filled")
    looks = [load.get(f"/v1/vector_stores/{filled.id}")] * 60
    load.run(port(server), searches[:20], clients=1)
    idle_search, idle_look = (load.run(port(server), requests, clients=1).p95_ms for requests in (searches, looks))
    whole = [chunk.text for chunk in bare.chunks(10_000, tokens=30)]
    uploads = [
        client.files.create(file=(f"{i}.txt", "\n\n".join(whole[i::10]).encode()), purpose="assistants").id
        for i in range(10)
    ]
    before = metrics(server)
    started = time.perf_counter()
    batch = client.vector_stores.file_batches.create(
        filled.id,
        file_ids=uploads,
        chunking_strategy={"type": "static", "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 50}},
    )
    busy_search, busy_look = (load.run(port(server), requests, clients=1).p95_ms for requests in (searches, looks))
    in_progress = client.vector_stores.file_batches.retrieve(batch.id, vector_store_id=filled.id).status
    assert in_progress == "in_progress", "the ingestion ended before the searches did: they prove nothing"
    client.vector_stores.file_batches.poll(batch.id, vector_store_id=filled.id, poll_interval_ms=1000)
    seconds = time.perf_counter() - started
    chunks = metrics(server)["florilegium_store_chunks"] - before["florilegium_store_chunks"]
    add(
        "p95 of a search while files are ingested",
        f"{busy_search / idle_search:.2f} x ({busy_search:.0f} against {idle_search:.0f} ms)",
        "<= 2",
        "1 client, ranker none",
    )
    add(
        "p95 of GET of a store while it is filled",
        f"{busy_look / idle_look:.2f} x ({busy_look:.0f} against {idle_look:.0f} ms)",
        "-",
        "1 client",
    )
    add(
        f"a batch of {len(uploads)} files of {chunks:.0f} chunks",
        f"{chunks / seconds:.0f} chunks/s, {len(uploads) / seconds:.2f} files/s",
        "-",
        ingest_shares(before, metrics(server)),
    )


def ingest(server: Server, store_id: str, files: Sequence[tuple[str, bytes]]) -> tuple[float, int]:
    """Seconds from the first upload to the last completed file, and how many chunks there are then."""
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
