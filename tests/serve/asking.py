"""Documents into a real service, and questions to it."""

from __future__ import annotations

import httpx

from tests.collections import Question, Sample, holds
from tests.serve.server import Server


def ingest(server: Server, documents: list[Sample]) -> tuple[str, dict[str, str]]:
    """Upload and attach as one batch; the store and each file's final status."""
    client = server.client
    store = client.vector_stores.create(name="documents")
    outcomes: dict[str, str] = {}
    uploaded: dict[str, str] = {}
    for sample in documents:
        upload = httpx.post(
            f"{server.address}/v1/files",
            data={"purpose": "assistants"},
            files={"file": (sample.path.name, sample.path.read_bytes())},
            timeout=60,
        )
        if upload.status_code == 400:
            outcomes[sample.file] = f"refused: {upload.json()['error']['message']}"
            continue
        assert upload.status_code == 200, upload.text
        uploaded[upload.json()["id"]] = sample.file
    files = [{"file_id": file_id, "attributes": {"path": path}} for file_id, path in uploaded.items()]
    batch = client.vector_stores.file_batches.create(store.id, files=files)
    ended = client.vector_stores.file_batches.poll(batch.id, vector_store_id=store.id, poll_interval_ms=1000)
    assert ended.file_counts.total == len(files)
    for file in client.vector_stores.file_batches.list_files(batch.id, vector_store_id=store.id, limit=100):
        reason = file.last_error.message if file.last_error else ""
        outcomes[uploaded[file.id]] = f"{file.status}: {reason}"
    return store.id, outcomes


def misses(server: Server, store_id: str, asked: list[Question]) -> list[str]:
    """Questions whose answer is not within the first five results."""
    found = []
    for question in asked:
        hits = server.client.vector_stores.search(store_id, query=question.text, max_num_results=5).data
        if not any(holds(part.text, question.answers) for hit in hits for part in hit.content):
            found.append(f"{question.file}: {question.text} ({question.answers[0]})")
    return found
