"""/v1/vector_stores and their files, through the official client where it can say it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from deployments.api.app import create_app
from rag import service
from rag.service import ServiceOptions
from tests.deployments.api.world import MakeWorld, World


async def upload(client: AsyncOpenAI, text: str = "night ferry", name: str = "a.txt") -> str:
    return (await client.files.create(file=(name, text.encode()), purpose="assistants")).id


async def refused(http: httpx.AsyncClient, path: str, body: object) -> dict:
    response = await http.post(path, json=body)
    assert response.status_code == 400, response.text
    return response.json()["error"]


# --- stores ---------------------------------------------------------------------------------------------------------


async def test_a_store_lives_from_creation_to_deletion(client: AsyncOpenAI) -> None:
    file_id = await upload(client)
    store = await client.vector_stores.create(
        name="logs",
        description="of boats",
        file_ids=[file_id, "file-unknown"],
        metadata={"port": "Skarvik"},
        expires_after={"anchor": "last_active_at", "days": 7},
    )
    assert (store.name, store.metadata, store.status) == ("logs", {"port": "Skarvik"}, "completed")
    assert store.description == "of boats"
    assert store.expires_at == store.last_active_at + 7 * 86_400
    assert (store.file_counts.completed, store.file_counts.failed, store.file_counts.total) == (1, 1, 2)
    assert store.usage_bytes == len("night ferry")
    assert (await client.vector_stores.retrieve(store.id)).id == store.id
    deleted = await client.vector_stores.delete(store.id)
    assert (deleted.id, deleted.object, deleted.deleted) == (store.id, "vector_store.deleted", True)
    with pytest.raises(openai.NotFoundError):
        await client.vector_stores.retrieve(store.id)
    assert (await client.files.retrieve(file_id)).id == file_id


async def test_an_unnamed_store_has_an_empty_name_and_every_required_field(http: httpx.AsyncClient) -> None:
    answer = (await http.post("/v1/vector_stores", json={})).json()
    assert answer["name"] == ""
    assert answer["metadata"] == {}
    assert answer["expires_after"] is None
    assert answer["file_counts"] == {"in_progress": 0, "completed": 0, "failed": 0, "cancelled": 0, "total": 0}


async def test_an_update_changes_what_it_names_and_null_clears(client: AsyncOpenAI, http: httpx.AsyncClient) -> None:
    store = await client.vector_stores.create(
        name="old", metadata={"a": "1"}, expires_after={"anchor": "last_active_at", "days": 1}
    )
    renamed = await client.vector_stores.update(store.id, name="new")
    assert (renamed.name, renamed.metadata, renamed.expires_after.days) == ("new", {"a": "1"}, 1)
    cleared = (
        await http.post(f"/v1/vector_stores/{store.id}", json={"name": None, "metadata": None, "expires_after": None})
    ).json()
    assert (cleared["name"], cleared["metadata"], cleared["expires_after"]) == ("new", {}, None)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"name": 5}, "name"),
        ({"file_ids": "file-a"}, "file_ids"),
        ({"file_ids": [1]}, "file_ids[0]"),
        ({"file_ids": [f"file-{i}" for i in range(501)]}, "file_ids"),
        ({"metadata": {"k": 5}}, "metadata.k"),
        ({"metadata": {"k" * 65: "v"}}, f"metadata.{'k' * 65}"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k"),
        ({"metadata": {str(i): "v" for i in range(17)}}, "metadata"),
        ({"metadata": "k"}, "metadata"),
        ({"expires_after": {"anchor": "created_at", "days": 1}}, "expires_after.anchor"),
        ({"expires_after": {"anchor": "last_active_at", "days": 366}}, "expires_after.days"),
        ({"expires_after": {"anchor": "last_active_at"}}, "expires_after.days"),
        ({"chunking_strategy": {"type": "contextual"}}, "chunking_strategy.type"),
        ({"chunking_strategy": {"type": "static"}}, "chunking_strategy.static"),
    ],
)
async def test_a_bad_creation_names_the_parameter(http: httpx.AsyncClient, body: dict, param: str) -> None:
    assert (await refused(http, "/v1/vector_stores", body))["param"] == param


async def test_an_expired_store_is_listed_as_expired_and_not_searched(
    world: World, client: AsyncOpenAI, http: httpx.AsyncClient
) -> None:
    world.stores.clock = lambda: 1_000_000_000
    store = await client.vector_stores.create()
    await client.vector_stores.update(store.id, expires_after={"anchor": "last_active_at", "days": 1})
    world.stores.clock = lambda: 2_000_000_000
    assert (await client.vector_stores.retrieve(store.id)).status == "expired"
    error = await refused(http, f"/v1/vector_stores/{store.id}/search", {"query": "a"})
    assert "expired" in error["message"]


async def test_lists_page_through_everything_once(client: AsyncOpenAI, http: httpx.AsyncClient) -> None:
    empty = (await http.get("/v1/vector_stores")).json()
    assert empty == {"object": "list", "data": [], "first_id": "", "last_id": "", "has_more": False}
    made = {(await client.vector_stores.create()).id for _ in range(7)}
    forward = [store.id async for store in client.vector_stores.list(limit=3, order="asc")]
    backward = [store.id async for store in client.vector_stores.list(limit=3)]
    assert set(forward) == made
    assert forward == backward[::-1]


async def test_250_stores_of_one_second_come_once_each(client: AsyncOpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "time", SimpleNamespace(time=lambda: 1_800_000_000))
    made = [(await client.vector_stores.create(name=str(number))).id for number in range(250)]
    for order in ("asc", "desc"):
        listed = [store async for store in client.vector_stores.list(limit=100, order=order)]
        assert {store.created_at for store in listed} == {1_800_000_000}
        assert len(listed) == 250
        assert {store.id for store in listed} == set(made)


async def test_a_store_is_there_at_once_for_every_replica(world: World, client: AsyncOpenAI) -> None:
    other = create_app(world.service, world.app.state.settings)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(other), base_url="http://other") as http:
        store = await client.vector_stores.create()
        path = f"/v1/vector_stores/{store.id}"
        answers = await asyncio.gather(
            *(http.get(path) for _ in range(50)),
            *(http.get(f"{path}/files") for _ in range(50)),
            *(http.post(f"{path}/search", json={"query": "a"}) for _ in range(50)),
        )
    assert [answer.status_code for answer in answers] == [200] * 150


@pytest.mark.parametrize(
    ("metadata", "param", "code"),
    [
        ({str(i): "v" for i in range(17)}, "metadata", "object_above_max_properties"),
        ({"k" * 65: "v"}, f"metadata.{'k' * 65}", "string_above_max_length"),
        ({"k": "v" * 513}, "metadata.k", "string_above_max_length"),
        ({"": "v"}, "metadata.", "string_below_min_length"),
        ({"a.b": 5}, "metadata.a.b", "invalid_type"),
        ({"k": None}, "metadata.k", "invalid_type"),
        ([], "metadata", "invalid_type"),
    ],
)
async def test_metadata_over_the_limits_is_named(
    client: AsyncOpenAI, http: httpx.AsyncClient, metadata: object, param: str, code: str
) -> None:
    full = {"k" * 64: "v" * 512} | {str(i): "" for i in range(15)}
    store = await client.vector_stores.create(metadata=full)
    for path in ("/v1/vector_stores", f"/v1/vector_stores/{store.id}"):
        error = await refused(http, path, {"metadata": metadata})
        assert (error["param"], error["code"]) == (param, code)
    assert (await client.vector_stores.retrieve(store.id)).metadata == full


async def test_members_that_are_not_known_are_ignored(http: httpx.AsyncClient) -> None:
    extra = {"embedding_model": "x", "embedding_dimension": 384, "provider_id": "y", "unheard": {"of": []}}
    answer = await http.post("/v1/vector_stores", json={"name": "n", **extra})
    assert answer.status_code == 200
    assert not set(extra) & set(answer.json())
    assert answer.json()["metadata"] == {}


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("limit=0", "integer_below_min_value"),
        ("limit=101", "integer_above_max_value"),
        ("limit=many", "invalid_type"),
        ("order=up", "invalid_value"),
        ("after=vs_gone", "invalid_value"),
        ("before=vs_gone", "invalid_value"),
    ],
)
async def test_a_bad_page_is_refused(http: httpx.AsyncClient, query: str, code: str) -> None:
    response = await http.get(f"/v1/vector_stores?{query}")
    assert response.status_code == 400
    assert response.json()["error"]["code"] == code
    assert response.json()["error"]["param"] == query.partition("=")[0]


# --- their files ----------------------------------------------------------------------------------------------------


async def test_an_attached_file_lives_from_attaching_to_detaching(client: AsyncOpenAI) -> None:
    store = await client.vector_stores.create()
    file_id = await upload(client)
    files = client.vector_stores.files
    attached = await files.create(vector_store_id=store.id, file_id=file_id, attributes={"deck": 2, "open": True})
    assert (attached.id, attached.status, attached.last_error) == (file_id, "completed", None)
    assert (attached.filename, attached.chunk_count) == ("a.txt", 1)
    assert attached.attributes["open"] is True
    assert attached.chunking_strategy.static.max_chunk_size_tokens == 800
    assert attached.chunking_strategy.static.chunk_overlap_tokens == 400
    again = await files.create(vector_store_id=store.id, file_id=file_id, attributes={"other": 1})
    assert again == attached
    assert (await files.retrieve(file_id, vector_store_id=store.id)) == attached
    deleted = await files.delete(file_id, vector_store_id=store.id)
    assert (deleted.object, deleted.deleted) == ("vector_store.file.deleted", True)
    assert (await client.vector_stores.retrieve(store.id)).file_counts.total == 0
    for attempt in (files.retrieve, files.delete):
        with pytest.raises(openai.NotFoundError):
            await attempt(file_id, vector_store_id=store.id)


async def test_an_unknown_file_cannot_be_attached(client: AsyncOpenAI) -> None:
    store = await client.vector_stores.create()
    with pytest.raises(openai.NotFoundError):
        await client.vector_stores.files.create(vector_store_id=store.id, file_id="file-unknown")


@pytest.mark.parametrize(("size", "overlap"), [(100, 50), (4096, 2048)])
async def test_sizes_of_chunks_are_taken_and_told(client: AsyncOpenAI, size: int, overlap: int) -> None:
    store = await client.vector_stores.create()
    static = {"max_chunk_size_tokens": size, "chunk_overlap_tokens": overlap}
    attached = await client.vector_stores.files.create(
        vector_store_id=store.id, file_id=await upload(client), chunking_strategy={"type": "static", "static": static}
    )
    assert attached.chunking_strategy.static.model_dump() == static


@pytest.mark.parametrize(("size", "overlap"), [(99, 10), (4097, 0), (100, 100), (100, 51), (800, -1), ("800", 0)])
async def test_sizes_out_of_range_are_refused_before_any_work(
    client: AsyncOpenAI, http: httpx.AsyncClient, size: object, overlap: object
) -> None:
    store = await client.vector_stores.create()
    static = {"max_chunk_size_tokens": size, "chunk_overlap_tokens": overlap}
    body = {"file_id": await upload(client), "chunking_strategy": {"type": "static", "static": static}}
    error = await refused(http, f"/v1/vector_stores/{store.id}/files", body)
    assert error["param"].startswith("chunking_strategy.static.")
    assert (await client.vector_stores.retrieve(store.id)).file_counts.total == 0


async def test_attributes_within_the_limits_are_kept_and_others_named(
    client: AsyncOpenAI, http: httpx.AsyncClient
) -> None:
    store = await client.vector_stores.create()
    path = f"/v1/vector_stores/{store.id}/files"
    for good in ({str(i): i for i in range(16)}, {"k" * 64: "v"}, {"k": "v" * 512}, {"k": 2**53}, None):
        response = await http.post(path, json={"file_id": await upload(client), "attributes": good})
        assert response.json()["attributes"] == (good or {})
    for bad, param in (
        ({str(i): i for i in range(17)}, "attributes"),
        ({"k" * 65: "v"}, f"attributes.{'k' * 65}"),
        ({"k": "v" * 513}, "attributes.k"),
        ({"k": [1]}, "attributes.k"),
        ({"k": {}}, "attributes.k"),
        ({"k": None}, "attributes.k"),
        ({"k": 2**53 + 1}, "attributes.k"),
        ({"k": 2**70}, "attributes.k"),
        ([1], "attributes"),
    ):
        error = await refused(http, path, {"file_id": await upload(client), "attributes": bad})
        assert error["param"] == param
    assert (await http.post(f"/v1/vector_stores/{store.id}/search", json={"query": "ferry"})).status_code == 200


async def test_large_integers_keep_all_their_digits(client: AsyncOpenAI) -> None:
    store = await client.vector_stores.create()
    for serial in (2**53 - 1, 2**53):
        await client.vector_stores.files.create(
            vector_store_id=store.id, file_id=await upload(client), attributes={"serial": serial}
        )
        page = await client.vector_stores.search(
            store.id, query="ferry", filters={"type": "eq", "key": "serial", "value": serial}
        )
        assert [int(hit.attributes["serial"]) for hit in page.data] == [serial]


async def test_changed_attributes_count_at_once_and_nothing_is_embedded_again(
    world: World, client: AsyncOpenAI, http: httpx.AsyncClient
) -> None:
    store = await client.vector_stores.create()
    file_id = await upload(client)
    files = client.vector_stores.files
    await files.create(vector_store_id=store.id, file_id=file_id, attributes={"state": "draft"})
    embedded = len(world.embedder.calls)
    updated = await files.update(file_id, vector_store_id=store.id, attributes={"state": "final"})
    assert updated.attributes == {"state": "final"}
    assert len(world.embedder.calls) == embedded

    async def found(state: str) -> list[dict]:
        where = {"type": "eq", "key": "state", "value": state}
        return [hit.attributes for hit in (await client.vector_stores.search(store.id, query="x", filters=where)).data]

    assert await found("draft") == []
    assert await found("final") == [{"state": "final"}]
    cleared = await http.post(f"/v1/vector_stores/{store.id}/files/{file_id}", json={"attributes": None})
    assert cleared.json()["attributes"] == {}
    error = await refused(http, f"/v1/vector_stores/{store.id}/files/{file_id}", {})
    assert (error["param"], error["code"]) == ("attributes", "missing_required_parameter")


async def test_a_file_that_is_attached_eight_times_at_once_is_there_once(client: AsyncOpenAI) -> None:
    store = await client.vector_stores.create()
    file_id = await upload(client, "night ferry\n\nnight bunks\n\nnight lamps")
    attach = client.vector_stores.files.create
    attached = await asyncio.gather(*(attach(vector_store_id=store.id, file_id=file_id) for _ in range(8)))
    assert {file.created_at for file in attached} == {attached[0].created_at}
    assert (await client.vector_stores.files.poll(file_id, vector_store_id=store.id)).status == "completed"
    counts = (await client.vector_stores.retrieve(store.id)).file_counts
    assert (counts.completed, counts.total) == (1, 1)
    page = await client.vector_stores.search(store.id, query="night")
    assert sorted(hit.content[0].text for hit in page.data) == ["night bunks", "night ferry", "night lamps"]


async def test_a_detached_file_is_out_of_search_and_still_uploaded(client: AsyncOpenAI) -> None:
    quillback, other = await upload(client, "a quillback in the net"), await upload(client, "lamps")
    store = await client.vector_stores.create(file_ids=[quillback, other])

    async def found(_: int = 0) -> set[str]:
        return {hit.file_id for hit in (await client.vector_stores.search(store.id, query="quillback")).data}

    assert quillback in await found()
    await client.vector_stores.files.delete(quillback, vector_store_id=store.id)
    assert await asyncio.gather(*map(found, range(20))) == [{other}] * 20
    with pytest.raises(openai.NotFoundError):
        await client.vector_stores.files.content(quillback, vector_store_id=store.id)
    assert (await client.files.retrieve(quillback)).id == quillback


async def test_a_deleted_upload_is_gone_from_every_store(client: AsyncOpenAI) -> None:
    file_id = await upload(client)
    stores = [await client.vector_stores.create(file_ids=[file_id]) for _ in range(2)]
    assert (await client.files.delete(file_id)).model_dump() == {"id": file_id, "object": "file", "deleted": True}
    for store in stores:
        assert (await client.vector_stores.search(store.id, query="night ferry")).data == []
        assert (await client.vector_stores.retrieve(store.id)).file_counts.total == 0
        with pytest.raises(openai.NotFoundError):
            await client.vector_stores.files.retrieve(file_id, vector_store_id=store.id)


async def test_files_of_one_second_page_through_once_in_both_directions(
    world: World, client: AsyncOpenAI, http: httpx.AsyncClient
) -> None:
    world.stores.clock = lambda: 1_800_000_000
    store = await client.vector_stores.create(file_ids=[await upload(client) for _ in range(25)])
    await client.vector_stores.files.create(vector_store_id=store.id, file_id=await upload(client, "\n"))
    path = f"/v1/vector_stores/{store.id}/files"

    async def pages(**query: object) -> AsyncIterator[dict]:
        after: dict[str, str] = {}
        while True:
            page = (await http.get(path, params={"limit": 10, "filter": "completed", **query, **after})).json()
            yield page
            if not page["has_more"]:
                return
            after = {"after": page["last_id"]}

    runs = {}
    for order in ("asc", "desc"):
        found = [page async for page in pages(order=order)]
        assert [len(page["data"]) for page in found] == [10, 10, 5]
        assert all(page["last_id"] == page["data"][-1]["id"] for page in found)
        assert all(page["first_id"] == page["data"][0]["id"] for page in found)
        runs[order] = [item["id"] for page in found for item in page["data"]]
    assert len(set(runs["asc"])) == 25
    assert runs["asc"] == runs["desc"][::-1]
    query = {"limit": 10, "order": "asc", "filter": "completed", "before": runs["asc"][15]}
    before = (await http.get(path, params=query)).json()
    assert [item["id"] for item in before["data"]] == runs["asc"][5:15]
    failed = (await http.get(path, params={"filter": "failed"})).json()
    assert [item["last_error"]["code"] for item in failed["data"]] == ["invalid_file"]
    assert (await http.get(path, params={"filter": "lost"})).status_code == 400


async def test_a_file_in_progress_tells_how_soon_to_look_again(make_world: MakeWorld) -> None:
    world = make_world(poll_after_ms=30, options=ServiceOptions(ingest_wait_s=0.0))
    world.stores.hold = asyncio.Event()
    async with world.openai() as client:
        store = await client.vector_stores.create()
        files = client.vector_stores.files
        file_id = await upload(client)
        waiting = await files.with_raw_response.create(vector_store_id=store.id, file_id=file_id)
        assert waiting.parse().status == "in_progress"
        assert waiting.headers["openai-poll-after-ms"] == "30"
        seen = await client.vector_stores.with_raw_response.retrieve(store.id)
        assert seen.parse().status == "in_progress"
        assert seen.headers["openai-poll-after-ms"] == "30"
        world.stores.hold.set()
        done = await files.poll(file_id, vector_store_id=store.id)
        assert done.status == "completed"
