"""Documents into a real service, and questions to it."""

from __future__ import annotations

import httpx

from tests.collections import Question, Sample, holds
from tests.serve.server import Server


def ingest(server: Server, documents: list[Sample]) -> tuple[str, dict[str, str]]:
    """Upload and attach; the store and each file's final status."""
    client = server.client
    store = client.vector_stores.create(name="documents")
    outcomes: dict[str, str] = {}
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
        attached = client.vector_stores.files.create_and_poll(
            upload.json()["id"], vector_store_id=store.id, attributes={"path": sample.file}
        )
        reason = attached.last_error.message if attached.last_error else ""
        outcomes[sample.file] = f"{attached.status}: {reason}"
    return store.id, outcomes


def misses(server: Server, store_id: str, asked: list[Question]) -> list[str]:
    """Questions whose answer is not within the first five results."""
    found = []
    for question in asked:
        hits = server.client.vector_stores.search(store_id, query=question.text, max_num_results=5).data
        if not any(holds(part.text, question.answers) for hit in hits for part in hit.content):
            found.append(f"{question.file}: {question.text} ({question.answers[0]})")
    return found
