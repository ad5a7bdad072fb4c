"""Too much at once: refused in good order, and served again afterwards."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest

from tests.serve.server import Server, serve_run

pytestmark = [pytest.mark.serve, pytest.mark.timeout(600)]

DOCUMENTS = [f"Document {i} about tides and harbours. " * 20 for i in range(16)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    small = {"model": "ms-marco-MiniLM-L-12-v2", "max_queued": 32}
    embedder = {"model": "bge-small-en-v1.5", "max_queued": 64}
    with serve_run(tmp_path_factory.mktemp("overload"), args={"reranker": small, "embedder": embedder}) as running:
        yield running


async def test_overload_is_429_or_503_with_retry_after_and_passes(server: Server):
    body = {"query": "tides", "documents": DOCUMENTS}
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.address, timeout=120, limits=limits) as client:
        answers = await asyncio.gather(*(client.post("/v1/rerank", json=body) for _ in range(100)))
        statuses = Counter(answer.status_code for answer in answers)
        assert set(statuses) <= {200, 429, 503}, statuses
        assert statuses[200]
        assert statuses[429] + statuses[503]
        for answer in answers:
            if answer.status_code != 200:
                assert 1 <= int(answer.headers["retry-after"]) <= 60
                assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert (await client.post("/v1/rerank", json=body)).status_code == 200


async def test_a_storm_of_clients_that_give_up_wedges_nothing(server: Server):
    async with httpx.AsyncClient(base_url=server.address, timeout=60) as client:

        async def give_up(number: int) -> None:
            body = {"model": "bge-small-en-v1.5", "input": f"storm {number} " * 50}
            try:
                await client.post("/v1/embeddings", json=body, timeout=0.05)
            except httpx.TimeoutException:
                return

        await asyncio.gather(*(give_up(number) for number in range(300)))
        after = [
            client.post("/v1/embeddings", json={"model": "bge-small-en-v1.5", "input": f"calm {i}"}) for i in range(30)
        ]
        assert [answer.status_code for answer in await asyncio.gather(*after)] == [200] * 30


async def test_searches_while_a_replica_of_the_store_is_killed_fail_in_good_order_and_come_back(server: Server):
    client = server.client
    upload = client.files.create(file=("tide.txt", b"High water is at noon."), purpose="assistants")
    store = client.vector_stores.create(name="tides")
    client.vector_stores.files.create_and_poll(upload.id, vector_store_id=store.id)
    (owner,) = [process for process in server.tree() if "Store" in " ".join(process.cmdline())]
    owner.kill()
    body = {"query": "When is high water?", "ranking_options": {"ranker": "none"}}
    seen: list[int] = []
    async with httpx.AsyncClient(base_url=server.address, timeout=60) as http, asyncio.timeout(90):
        while not seen or seen[-1] != 200:
            answer = await http.post(f"/v1/vector_stores/{store.id}/search", json=body)
            seen.append(answer.status_code)
            await asyncio.sleep(0.2)
    assert set(seen) <= {200, 503}
    assert answer.json()["data"][0]["file_id"] == upload.id
