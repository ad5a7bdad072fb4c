"""What surrounds every route: request ids, keys, health and metrics."""

from __future__ import annotations

import httpx
import openai
import pytest

from rag.errors import ModelFailed
from tests.deployments.api.world import MODEL, MakeWorld, World

KEYS = {"alice": "sk-alice", "bob": "sk-bob"}


# --- request ids ----------------------------------------------------------------------------------------------------


async def test_every_answer_carries_an_id_and_a_sane_one_is_taken_over(http: httpx.AsyncClient) -> None:
    paths = ("/v1/models", "/nope", "/health/live", "/v1/vector_stores/bad")
    made = [(await http.get(path)).headers.get_list("x-request-id") for path in paths]
    assert all(len(found) == 1 for found in made)
    assert len({found[0] for found in made}) == len(paths)
    sent = await http.get("/v1/models", headers={"x-request-id": "trace-7.a:b_c"})
    assert sent.headers["x-request-id"] == "trace-7.a:b_c"
    for odd in ("", "a b", "x" * 129, "<script>"):
        assert (await http.get("/v1/models", headers={"x-request-id": odd})).headers["x-request-id"] != odd


# --- keys -----------------------------------------------------------------------------------------------------------


WRONG = (None, "", "Bearer", "Bearer ", "Bearer wrong", "Basic sk-alice", "sk-alice", "Bearer sk-alic", "Bearer é")


@pytest.mark.parametrize("header", WRONG)
async def test_without_a_known_key_every_route_but_health_is_closed(make_world: MakeWorld, header: str | None) -> None:
    async with make_world(keys=KEYS).http() as http:
        headers = {} if header is None else {"authorization": header.encode()}
        for method, path in (
            ("GET", "/v1/models"),
            ("POST", "/v1/embeddings"),
            ("POST", "/v1/files"),
            ("GET", "/metrics"),
            ("GET", "/openapi.json"),
            ("GET", "/nope"),
            ("GET", "/healthy"),
        ):
            response = await http.request(method, path, headers=headers)
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "invalid_api_key"
            assert "x-request-id" in response.headers
        assert (await http.get("/health/live", headers=headers)).status_code == 200
        assert (await http.get("/health/ready", headers=headers)).status_code == 200


async def test_a_key_opens_and_the_official_client_knows_a_wrong_one(make_world: MakeWorld) -> None:
    world = make_world(keys=KEYS)
    async with world.openai("sk-alice") as client:
        assert (await client.models.retrieve(MODEL)).id == MODEL
    async with world.openai("wrong") as client:
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()


async def test_what_one_owner_has_does_not_exist_for_another(make_world: MakeWorld) -> None:
    world = make_world(keys=KEYS)
    async with world.openai("sk-alice") as alice:
        file = await alice.files.create(file=("a.txt", b"code word quillback"), purpose="assistants")
        store = await alice.vector_stores.create(file_ids=[file.id])
        batch = await alice.vector_stores.file_batches.create(store.id, file_ids=[file.id])
        assert len((await alice.vector_stores.search(store.id, query="quillback")).data) == 1
    base, attached = f"/v1/vector_stores/{store.id}", f"/v1/vector_stores/{store.id}/files/{file.id}"
    async with world.http("sk-bob") as http:
        for method, path, body in (
            ("GET", f"/v1/files/{file.id}", None),
            ("GET", f"/v1/files/{file.id}/content", None),
            ("DELETE", f"/v1/files/{file.id}", None),
            ("GET", base, None),
            ("POST", base, {"name": "mine"}),
            ("DELETE", base, None),
            ("POST", f"{base}/search", {"query": "quillback"}),
            ("GET", f"{base}/files", None),
            ("POST", f"{base}/files", {"file_id": file.id}),
            ("GET", attached, None),
            ("POST", attached, {"attributes": {"a": 1}}),
            ("DELETE", attached, None),
            ("GET", f"{attached}/content", None),
            ("POST", f"{base}/file_batches", {"file_ids": [file.id]}),
            ("GET", f"{base}/file_batches/{batch.id}", None),
            ("GET", f"{base}/file_batches/{batch.id}/files", None),
            ("POST", f"{base}/file_batches/{batch.id}/cancel", None),
        ):
            response = await http.request(method, path, json=body)
            assert response.status_code == 404, f"{method} {path}"
            assert "quillback" not in response.text
        for path in ("/v1/files", "/v1/vector_stores"):
            assert (await http.get(path)).json()["data"] == []
    async with world.openai("sk-bob") as bob:
        own = await bob.vector_stores.create()
        with pytest.raises(openai.NotFoundError):
            await bob.vector_stores.files.create(vector_store_id=own.id, file_id=file.id)
    async with world.openai("sk-alice") as alice:
        assert len((await alice.vector_stores.search(store.id, query="quillback")).data) == 1


# --- health and metrics ---------------------------------------------------------------------------------------------


async def test_readiness_follows_the_models_and_liveness_does_not(world: World, http: httpx.AsyncClient) -> None:
    assert (await http.get("/health/ready")).json() == {"status": "ready"}
    world.reranker.fails = ModelFailed("not finite")
    unready = await http.get("/health/ready")
    assert unready.status_code == 503
    assert "not finite" in unready.json()["error"]["message"]
    assert unready.headers["retry-after"] == "1"
    assert (await http.get("/health/live")).status_code == 200
    world.reranker.fails = None
    assert (await http.get("/health/ready")).status_code == 200


async def test_requests_are_counted_by_pattern_and_stages_are_timed(http: httpx.AsyncClient) -> None:
    await http.post("/v1/embeddings", json={"model": MODEL, "input": "a"})
    await http.post("/v1/embeddings", json={})
    await http.get("/v1/files/file-a")
    await http.get("/v1/files/file-b")
    await http.request("INVENTED", "/nope/1")
    text = (await http.get("/metrics")).text
    for line in (
        'florilegium_requests_total{method="POST",route="/v1/embeddings",status="200"} 1.0',
        'florilegium_requests_total{method="POST",route="/v1/embeddings",status="400"} 1.0',
        'florilegium_requests_total{method="GET",route="/v1/files/{file_id}",status="404"} 2.0',
        'florilegium_requests_total{method="other",route="unmatched",status="404"} 1.0',
        'florilegium_stage_seconds_count{stage="embed"} 1.0',
        "florilegium_embedder_up 1.0",
    ):
        assert line in text


async def test_two_apps_count_apart(make_world: MakeWorld) -> None:
    first, second = make_world(), make_world()
    async with first.http() as http:
        await http.get("/v1/models")
    async with second.http() as http:
        assert '"/v1/models"' not in (await http.get("/metrics")).text
