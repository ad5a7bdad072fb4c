"""SIGKILL at random moments of a running batch: whatever was acknowledged is there, once, and all of it gets done."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from openai import OpenAI
from openai.types.vector_stores import VectorStoreFileBatch

from deployments import maintenance
from deployments.launcher import wait_until_ready
from deployments.settings import Settings
from tests.serve.server import ROOT, free_port

pytestmark = [pytest.mark.serve, pytest.mark.models, pytest.mark.timeout(800)]

KILLS = 20
SIZES = {"type": "static", "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 20}}
FILES = 50
LONG = {7}  # of more chunks than are kept at once
WORDS = (
    "tide",
    "harbour",
    "ferry",
    "pilot",
    "winter",
    "storm",
    "captain",
    "cargo",
    "island",
    "bridge",
    "river",
    "stone",
)


def text_of(number: int) -> str:
    """Sentences that no other file has, in paragraphs."""
    choose = random.Random(number)
    length = 2_400 if number in LONG else choose.randint(60, 300)
    sentences = (
        f"In file {number} sentence {index} tells of {' '.join(choose.choices(WORDS, k=12))}."
        for index in range(length)
    )
    return "\n\n".join(sentences)


@contextmanager
def running(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], OpenAI]]:
    """The service over the same data as before; it is killed at the end of the block."""
    port = free_port()
    with (folder / "service.log").open("ab") as log:
        command = [sys.executable, "-m", "tests.serve.alone", str(folder / "data"), str(port)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
    try:
        wait_until_ready(f"http://127.0.0.1:{port}", timeout_s=120)
        yield process, OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=60)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def states(client: OpenAI, batch: VectorStoreFileBatch) -> dict[str, str]:
    """Each file's status; all of them are listed."""
    found = {
        file.id: file.status
        for file in client.vector_stores.file_batches.list_files(
            batch.id, vector_store_id=batch.vector_store_id, limit=100
        )
    }
    assert len(found) == FILES
    return found


def test_twenty_kills_lose_and_double_nothing(tmp_path: Path):
    choose = random.Random(os.environ.get("KILLS_SEED", "5"))
    with running(tmp_path) as (_, client):
        texts = {}
        for number in range(FILES):
            upload = client.files.create(file=(f"{number}.txt", text_of(number).encode()), purpose="assistants")
            texts[upload.id] = text_of(number)
        store = client.vector_stores.create(name="killed")
        batch = client.vector_stores.file_batches.create(
            store.id,
            files=[
                {"file_id": file_id, "attributes": {"file": file_id}, "chunking_strategy": SIZES} for file_id in texts
            ],
        )
    done: set[str] = set()
    for _ in range(KILLS):
        with running(tmp_path) as (_, client):
            now = states(client, batch)
            assert set(now.values()) <= {"completed", "in_progress"}
            assert done <= {file_id for file_id, status in now.items() if status == "completed"}
            time.sleep(choose.uniform(0.0, 1.5))
            done = {file_id for file_id, status in states(client, batch).items() if status == "completed"}
    assert len(done) < FILES, "the batch was done before the last kill: it proves too little"
    with running(tmp_path) as (_, client):
        ended = client.vector_stores.file_batches.poll(batch.id, vector_store_id=store.id, poll_interval_ms=500)
        assert (ended.status, ended.file_counts.completed, ended.file_counts.total) == ("completed", FILES, FILES)
        kept = client.vector_stores.retrieve(store.id)
        assert kept.file_counts.model_dump() == ended.file_counts.model_dump()
        usage = 0
        for file_id, text in texts.items():
            parts = client.vector_stores.files.content(file_id, vector_store_id=store.id).data
            assert "".join("".join(part.text for part in parts).split()) == "".join(text.split())
            usage += client.vector_stores.files.retrieve(file_id, vector_store_id=store.id).usage_bytes
        assert kept.usage_bytes == usage
        for file_id in random.Random(1).sample(sorted(texts), 12):
            only = {"type": "eq", "key": "file", "value": file_id}
            hits = client.vector_stores.search(store.id, query="storm", filters=only, max_num_results=50).data
            kept = client.vector_stores.files.retrieve(file_id, vector_store_id=store.id).model_extra or {}
            assert {hit.file_id for hit in hits} == {file_id}
            assert len({hit.content[0].text for hit in hits}) == len(hits) == min(50, kept["chunk_count"])
    assert maintenance.verify(Settings(data_dir=tmp_path / "data")) == []
