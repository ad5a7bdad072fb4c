"""/v1/vector_stores/{id}/file_batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from rag.service import ServiceOptions
from tests.deployments.api.world import MakeWorld, World

STATIC = {"max_chunk_size_tokens": 200, "chunk_overlap_tokens": 50}


async def upload(client: AsyncOpenAI, text: str = "night ferry", name: str = "a.txt") -> str:
    return (await client.files.create(file=(name, text.encode()), purpose="assistants")).id


async def refused(http: httpx.AsyncClient, store_id: str, body: object) -> dict:
    response = await http.post(f"/v1/vector_stores/{store_id}/file_batches", json=body)
    assert response.status_code == 400, response.text
    return response.json()["error"]


@pytest.fixture
async def held(make_world: MakeWorld) -> AsyncIterator[tuple[World, AsyncOpenAI]]:
    """A world that ingests nothing before it is told to, and never waits for it."""
    world = make_world(poll_after_ms=30, options=ServiceOptions(ingest_wait_s=0.0))
    world.stores.hold = asyncio.Event()
    async with world.openai() as client:
        yield world, client


# --- through the official client ------------------------------------------------------------------------------------


async def test_a_batch_keeps_its_id_in_every_answer(held: tuple[World, AsyncOpenAI]) -> None:
    _, client = held
    batches = client.vector_stores.file_batches
    store = await client.vector_stores.create()
    made = await batches.create(store.id, file_ids=[await upload(client), await upload(client)])
    assert made.id.startswith("vsfb_")
    assert (made.object, made.vector_store_id, made.status) == ("vector_store.files_batch", store.id, "in_progress")
    assert (made.file_counts.in_progress, made.file_counts.total) == (2, 2)
    assert await batches.retrieve(made.id, vector_store_id=store.id) == made
    cancelled = await batches.cancel(made.id, vector_store_id=store.id)
    assert (cancelled.id, cancelled.created_at, cancelled.status) == (made.id, made.created_at, "cancelled")
    assert (cancelled.file_counts.cancelled, cancelled.file_counts.in_progress) == (2, 0)
    assert await batches.retrieve(made.id, vector_store_id=store.id) == cancelled
    files = [file async for file in batches.list_files(made.id, vector_store_id=store.id, limit=1)]
    assert [file.status for file in files] == ["cancelled", "cancelled"]
    assert len({file.id for file in files}) == 2


async def test_one_bad_file_does_not_spoil_a_batch(client: AsyncOpenAI) -> None:
    batches = client.vector_stores.file_batches
    store = await client.vector_stores.create()
    bad = await upload(client, "\n", "bad.txt")
    done = await batches.create_and_poll(store.id, file_ids=[await upload(client), bad, await upload(client)])
    assert done.status == "completed"
    counts = done.file_counts
    assert (counts.completed, counts.failed, counts.in_progress, counts.cancelled, counts.total) == (2, 1, 0, 0, 3)
    assert (await client.vector_stores.retrieve(store.id)).file_counts.model_dump() == counts.model_dump()
    failed = (await batches.list_files(done.id, vector_store_id=store.id, filter="failed")).data
    assert [(file.id, file.last_error.code) for file in failed] == [(bad, "invalid_file")]
    assert len((await client.vector_stores.search(store.id, query="night ferry")).data) == 2


async def test_a_batch_that_failed_as_a_whole_is_completed_all_the_same(client: AsyncOpenAI) -> None:
    store = await client.vector_stores.create()
    done = await client.vector_stores.file_batches.create_and_poll(
        store.id, file_ids=["invalid_file_id", await upload(client, "\n")]
    )
    assert (done.status, done.file_counts.failed, done.file_counts.total) == ("completed", 2, 2)
    await client.vector_stores.files.delete("invalid_file_id", vector_store_id=store.id)
    assert (await client.vector_stores.retrieve(store.id)).file_counts.total == 1


async def test_files_are_uploaded_and_attached_in_one_go(client: AsyncOpenAI) -> None:
    store = await client.vector_stores.create()
    uploads = [(f"{number}.txt", f"night ferry {number}".encode()) for number in range(7)]
    done = await client.vector_stores.file_batches.upload_and_poll(
        store.id, files=uploads, file_ids=[await upload(client)]
    )
    assert (done.status, done.file_counts.completed, done.file_counts.total) == ("completed", 8, 8)
    names = [file.filename async for file in client.vector_stores.files.list(store.id, limit=3)]
    assert sorted(names) == ["0.txt", "1.txt", "2.txt", "3.txt", "4.txt", "5.txt", "6.txt", "a.txt"]


async def test_polling_ends_when_the_work_does(held: tuple[World, AsyncOpenAI]) -> None:
    world, client = held
    batches = client.vector_stores.file_batches
    store = await client.vector_stores.create()
    waiting = await batches.with_raw_response.create(store.id, file_ids=[await upload(client)])
    assert waiting.headers["openai-poll-after-ms"] == "30"
    polling = asyncio.create_task(batches.poll(waiting.parse().id, vector_store_id=store.id))
    await asyncio.sleep(0.1)
    assert not polling.done()
    world.stores.hold.set()
    assert (await polling).status == "completed"
    done = await batches.with_raw_response.retrieve(waiting.parse().id, vector_store_id=store.id)
    assert "openai-poll-after-ms" not in done.headers


async def test_single_files_are_polled_too(client: AsyncOpenAI) -> None:
    store = await client.vector_stores.create()
    files = client.vector_stores.files
    attached = await files.create_and_poll(await upload(client), vector_store_id=store.id, attributes={"deck": 2})
    assert (attached.status, attached.attributes) == ("completed", {"deck": 2})
    uploaded = await files.upload_and_poll(vector_store_id=store.id, file=("b.txt", b"lamps"))
    assert (uploaded.status, uploaded.filename) == ("completed", "b.txt")
    assert (await client.vector_stores.retrieve(store.id)).file_counts.completed == 2


# --- what a batch takes over ----------------------------------------------------------------------------------------


async def test_ids_share_what_the_batch_says_and_files_have_their_own(client: AsyncOpenAI) -> None:
    batches, files = client.vector_stores.file_batches, client.vector_stores.files
    store = await client.vector_stores.create()
    first, second, third, fourth = [await upload(client) for _ in range(4)]
    strategy = {"type": "static", "static": STATIC}
    await batches.create(store.id, file_ids=[first, second], attributes={"deck": 1}, chunking_strategy=strategy)
    own = [{"file_id": third, "attributes": {"open": True}, "chunking_strategy": strategy}, {"file_id": fourth}]
    await batches.create(store.id, files=own, attributes={"deck": 9}, chunking_strategy={"type": "auto"})
    seen = {}
    for file_id in (first, second, third, fourth):
        file = await files.retrieve(file_id, vector_store_id=store.id)
        seen[file_id] = (file.attributes, file.chunking_strategy.static.max_chunk_size_tokens)
    shared = ({"deck": 1}, 200)
    assert seen == {first: shared, second: shared, third: ({"open": True}, 200), fourth: ({}, 800)}


async def test_a_file_that_is_attached_already_is_counted_and_stays_as_it_is(client: AsyncOpenAI) -> None:
    file_id = await upload(client)
    store = await client.vector_stores.create()
    before = await client.vector_stores.files.create(vector_store_id=store.id, file_id=file_id, attributes={"deck": 1})
    batch = await client.vector_stores.file_batches.create(
        store.id, file_ids=[file_id, file_id], attributes={"deck": 2}
    )
    assert (batch.file_counts.completed, batch.file_counts.total) == (1, 1)
    assert await client.vector_stores.files.retrieve(file_id, vector_store_id=store.id) == before
    assert (await client.vector_stores.retrieve(store.id)).file_counts.total == 1


async def test_2000_files_are_one_batch(client: AsyncOpenAI) -> None:
    store = await client.vector_stores.create()
    batch = await client.vector_stores.file_batches.create(store.id, file_ids=[f"file-{i}" for i in range(2000)])
    assert (batch.file_counts.failed, batch.file_counts.total) == (2000, 2000)
    listed = client.vector_stores.file_batches.list_files(batch.id, vector_store_id=store.id, limit=100)
    assert len({file.id async for file in listed}) == 2000


async def test_the_files_of_a_batch_page_in_both_directions(world: World, client: AsyncOpenAI) -> None:
    world.stores.clock = lambda: 1_800_000_000
    store = await client.vector_stores.create(file_ids=[await upload(client)])
    batch = await client.vector_stores.file_batches.create(store.id, file_ids=[await upload(client) for _ in range(25)])
    listing = client.vector_stores.file_batches.list_files
    runs = {
        order: [file.id async for file in listing(batch.id, vector_store_id=store.id, limit=10, order=order)]
        for order in ("asc", "desc")
    }
    assert len(set(runs["asc"])) == 25
    assert runs["asc"] == runs["desc"][::-1]
    back = await listing(batch.id, vector_store_id=store.id, limit=10, order="asc", before=runs["asc"][15])
    assert [file.id for file in back.data] == runs["asc"][5:15]


# --- cancelling -----------------------------------------------------------------------------------------------------


async def test_cancelling_keeps_what_is_completed(held: tuple[World, AsyncOpenAI]) -> None:
    world, client = held
    store = await client.vector_stores.create()
    first, second = await upload(client, "night ferry"), await upload(client, "night lamps")
    world.stores.hold.set()
    await client.vector_stores.files.create_and_poll(first, vector_store_id=store.id)
    world.stores.hold.clear()
    batch = await client.vector_stores.file_batches.create(store.id, file_ids=[first, second])
    cancelled = await client.vector_stores.file_batches.cancel(batch.id, vector_store_id=store.id)
    world.stores.hold.set()
    assert cancelled.status == "cancelled"
    assert (cancelled.file_counts.completed, cancelled.file_counts.cancelled) == (1, 1)
    await asyncio.sleep(0.05)
    counts = (await client.vector_stores.retrieve(store.id)).file_counts
    assert (counts.completed, counts.cancelled, counts.total) == (1, 1, 2)
    page = await client.vector_stores.search(store.id, query="night")
    assert [hit.file_id for hit in page.data] == [first]


async def test_a_batch_that_has_ended_is_not_changed_by_cancelling(client: AsyncOpenAI) -> None:
    batches = client.vector_stores.file_batches
    store = await client.vector_stores.create()
    done = await batches.create(store.id, file_ids=[await upload(client), await upload(client, "\n")])
    assert await batches.cancel(done.id, vector_store_id=store.id) == done


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "file_ids", "missing_required_parameter"),
        ({"file_ids": None}, "file_ids", "missing_required_parameter"),
        ({"file_ids": ["a"], "files": [{"file_id": "a"}]}, "files", "invalid_value"),
        ({"file_ids": []}, "file_ids", "array_below_min_length"),
        ({"files": []}, "files", "array_below_min_length"),
        ({"file_ids": ["a"] * 2001}, "file_ids", "array_above_max_length"),
        ({"files": [{"file_id": "a"}] * 2001}, "files", "array_above_max_length"),
        ({"file_ids": "a"}, "file_ids", "invalid_type"),
        ({"file_ids": ["a", 5]}, "file_ids[1]", "invalid_type"),
        ({"file_ids": [""]}, "file_ids[0]", "string_below_min_length"),
        ({"file_ids": ["a/b"]}, "file_ids[0]", "invalid_value"),
        ({"files": [{"file_id": "a"}, {}]}, "files[1].file_id", "missing_required_parameter"),
    ],
)
async def test_a_bad_batch_names_the_parameter(
    client: AsyncOpenAI, http: httpx.AsyncClient, body: dict, param: str, code: str
) -> None:
    store = await client.vector_stores.create()
    error = await refused(http, store.id, body)
    assert (error["param"], error["code"]) == (param, code)
    assert (await client.vector_stores.retrieve(store.id)).file_counts.total == 0


@pytest.mark.parametrize(
    ("attributes", "within", "code"),
    [
        ({str(i): i for i in range(17)}, "", "object_above_max_properties"),
        ({"k" * 65: "v"}, f".{'k' * 65}", "string_above_max_length"),
        ({"k": "v" * 513}, ".k", "string_above_max_length"),
        ({"a.b": [1]}, ".a.b", "invalid_value"),
        ({"k": {}}, ".k", "invalid_value"),
        ({"k": None}, ".k", "invalid_value"),
        ({"k": 2**53 + 1}, ".k", "invalid_value"),
        ([1], "", "invalid_value"),
    ],
)
async def test_attributes_are_checked_wherever_they_are_given(
    client: AsyncOpenAI, http: httpx.AsyncClient, attributes: object, within: str, code: str
) -> None:
    file_id = await upload(client)
    store = await client.vector_stores.create(file_ids=[file_id])
    own = {"file_id": await upload(client), "attributes": attributes}
    path = f"/v1/vector_stores/{store.id}"
    for address, body, param in (
        (f"{path}/files", own, "attributes"),
        (f"{path}/files/{file_id}", {"attributes": attributes}, "attributes"),
        (f"{path}/file_batches", {"file_ids": [own["file_id"]], "attributes": attributes}, "attributes"),
        (f"{path}/file_batches", {"files": [{"file_id": file_id}, own]}, "files[1].attributes"),
    ):
        response = await http.post(address, json=body)
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert (error["param"], error["code"]) == (param + within, code)
    assert (await client.vector_stores.retrieve(store.id)).file_counts.total == 1
    assert (await client.vector_stores.search(store.id, query="ferry")).data


@pytest.mark.parametrize(
    ("strategy", "within", "code"),
    [
        ({"type": "static"}, "static", "missing_required_parameter"),
        ({"type": "semantic"}, "type", "invalid_value"),
        ({}, "type", "missing_required_parameter"),
        *(
            ({"type": "static", "static": {"max_chunk_size_tokens": size, "chunk_overlap_tokens": overlap}}, part, code)
            for size, overlap, part, code in (
                (99, 0, "static.max_chunk_size_tokens", "integer_below_min_value"),
                (4097, 0, "static.max_chunk_size_tokens", "integer_above_max_value"),
                (100, 51, "static.chunk_overlap_tokens", "invalid_value"),
                (100, -1, "static.chunk_overlap_tokens", "integer_below_min_value"),
            )
        ),
    ],
)
async def test_sizes_are_checked_wherever_they_are_given(
    client: AsyncOpenAI, http: httpx.AsyncClient, strategy: dict, within: str, code: str
) -> None:
    store = await client.vector_stores.create()
    file_id = await upload(client)
    path = f"/v1/vector_stores/{store.id}"
    shared = {"chunking_strategy": strategy}
    for address, body, param in (
        ("/v1/vector_stores", {"file_ids": [file_id], **shared}, "chunking_strategy"),
        (f"{path}/files", {"file_id": file_id, **shared}, "chunking_strategy"),
        (f"{path}/file_batches", {"file_ids": [file_id], **shared}, "chunking_strategy"),
        (f"{path}/file_batches", {"files": [{"file_id": file_id, **shared}]}, "files[0].chunking_strategy"),
    ):
        response = await http.post(address, json=body)
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert (error["param"], error["code"]) == (f"{param}.{within}", code)
    assert (await client.vector_stores.retrieve(store.id)).file_counts.total == 0
    assert len((await client.vector_stores.list()).data) == 1


async def test_ids_of_the_wrong_form_and_of_others(make_world: MakeWorld) -> None:
    world = make_world(keys={"alice": "sk-alice", "bob": "sk-bob"})
    async with world.openai("sk-alice") as alice, world.openai("sk-bob") as bob:
        file_id = await upload(alice)
        store, other = await alice.vector_stores.create(), await alice.vector_stores.create()
        batch = await alice.vector_stores.file_batches.create(store.id, file_ids=[file_id])
        for client, store_id, batch_id, error, param in (
            (alice, store.id, "non_existent_batch_id", openai.BadRequestError, "batch_id"),
            (alice, store.id, store.id, openai.BadRequestError, "batch_id"),
            (alice, "abc123", batch.id, openai.BadRequestError, "vector_store_id"),
            (alice, store.id, "vsfb_unknown", openai.NotFoundError, "batch_id"),
            (alice, other.id, batch.id, openai.NotFoundError, "batch_id"),
            (bob, store.id, batch.id, openai.NotFoundError, "vector_store_id"),
        ):
            batches = client.vector_stores.file_batches
            for attempt in (batches.retrieve, batches.cancel, batches.list_files):
                with pytest.raises(error) as caught:
                    await attempt(batch_id, vector_store_id=store_id)
                assert caught.value.param == param
        with pytest.raises(openai.NotFoundError):
            await bob.vector_stores.file_batches.create(store.id, file_ids=[file_id])
        own = await bob.vector_stores.create()
        foreign = await bob.vector_stores.file_batches.create(own.id, file_ids=[file_id])
        assert (foreign.file_counts.failed, foreign.file_counts.total) == (1, 1)
