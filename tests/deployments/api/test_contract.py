"""Answers and errors against OpenAI's own document, where it lies beside the repository."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import yaml
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from rag.errors import ModelFailed, Overloaded, StoreUnavailable
from rag.service import ServiceOptions
from tests.deployments.api.world import MODEL, MakeWorld, World

DOCUMENT = Path(__file__).parents[4] / "shared" / "contracts" / "openai-vector-stores.yaml"
URI = "urn:openai"
METHODS = ("get", "post", "delete")
RAW = "/files/{file_id}/content"  # documented as a JSON string; the clients read bytes, and the service sends bytes
HIT_EXTENSIONS = {"chunk_id": {}, "chunk_index": {}, "char_range": {}, "page": {}, "page_last": {}, "heading": {}}

pytestmark = pytest.mark.skipif(not DOCUMENT.exists(), reason="OpenAI's document is not here")


def mended(document: dict[str, Any]) -> dict[str, Any]:
    """The document with what it forgot; each line says why."""
    schemas = document["components"]["schemas"]
    # The clients' types and OpenAI's service know null for a store that never expires.
    store = schemas["VectorStoreObject"]["properties"]
    store["expires_after"] = {"anyOf": [store["expires_after"], {"type": "null"}]}
    # An upload may be made for evals, so it is shown as such.
    schemas["OpenAIFile"]["properties"]["purpose"]["enum"].append("evals")
    # A hit closes its list of members, and ours has extensions.
    schemas["VectorStoreSearchResultItem"]["properties"].update(HIT_EXTENSIONS)
    return document


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return mended(yaml.load(DOCUMENT.read_bytes(), yaml.CSafeLoader))


class Contract:
    """A client that holds every answer against the document, and remembers what was asked."""

    def __init__(self, http: httpx.AsyncClient, document: dict[str, Any]) -> None:
        self.http = http
        self.registry = Registry().with_resource(URI, Resource(document, DRAFT202012))
        self.asked: set[tuple[str, str]] = set()

    async def call(
        self, method: str, path: str, ids: dict[str, str] | None = None, status: int = 200, **request: Any
    ) -> Any:
        """`path` is the document's, with the names of its ids in braces."""
        response = await self.http.request(method, "/v1" + path.format_map(ids or {}), **request)
        assert response.status_code == status, response.text
        if status == 200:
            self.asked.add((method, path))
            if path == RAW:
                return response.content
            answered = ("paths", path, method, "responses", "200", "content", "application/json", "schema")
            self.validate(response.json(), *answered)
        else:
            self.validate(response.json(), "components", "schemas", "ErrorResponse")
        return response.json()

    def validate(self, answer: Any, *pointer: str) -> None:
        steps = "/".join(step.replace("/", "~1") for step in pointer)
        schema = {"$ref": f"{URI}#/{quote(steps, safe='/~')}"}
        Draft202012Validator(schema, registry=self.registry).validate(answer)


def operations(document: dict[str, Any]) -> set[tuple[str, str]]:
    """Those that concern files and vector stores; uploads in parts are another thing."""
    return {
        (method, path)
        for path, item in document["paths"].items()
        if path.startswith(("/files", "/vector_stores"))
        for method in METHODS
        if method in item
    }


@pytest.fixture
async def slow(make_world: MakeWorld) -> AsyncIterator[tuple[World, httpx.AsyncClient]]:
    """A world whose answers do not wait for ingestion."""
    world = make_world(options=ServiceOptions(ingest_wait_s=0.0))
    async with world.http() as http:
        yield world, http


async def test_every_operation_answers_as_the_document_says(
    slow: tuple[World, httpx.AsyncClient], document: dict[str, Any]
) -> None:
    world, http = slow
    contract = Contract(http, document)
    call = contract.call

    # files
    files = []
    for number, purpose in enumerate(("assistants", "batch", "evals", "user_data")):
        form = {"files": {"file": (f"{number}.txt", b"night ferry\n\nbunks")}, "data": {"purpose": purpose}}
        files.append((await call("post", "/files", **form))["id"])
    assert len((await call("get", "/files"))["data"]) == 4
    await call("get", "/files", params={"purpose": "none"})
    await call("get", "/files/{file_id}", {"file_id": files[0]})
    assert await call("get", RAW, {"file_id": files[0]}) == b"night ferry\n\nbunks"

    # stores, at every stage of their files
    store_path, file_path = "/vector_stores/{vector_store_id}", "/vector_stores/{vector_store_id}/files/{file_id}"
    batch_path = "/vector_stores/{vector_store_id}/file_batches/{batch_id}"
    await call("get", "/vector_stores")
    await call("post", "/vector_stores", json={})
    world.stores.hold = asyncio.Event()
    body = {
        "name": "n",
        "description": "d",
        "file_ids": [files[0], "unknown"],
        "metadata": {"a": "b"},
        "expires_after": {"anchor": "last_active_at", "days": 1},
    }
    store = await call("post", "/vector_stores", json=body)
    assert store["status"] == "in_progress"
    ids = {"vector_store_id": store["id"], "file_id": files[0]}
    static = {"type": "static", "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 0}}
    attributes = {"text": "x", "number": 1.5, "flag": True}
    body = {"file_id": files[1], "attributes": attributes, "chunking_strategy": static}
    await call("post", "/vector_stores/{vector_store_id}/files", ids, json=body)
    batch = await call("post", "/vector_stores/{vector_store_id}/file_batches", ids, json={"file_ids": files[2:3]})
    ids["batch_id"] = batch["id"]
    assert batch["status"] == (await call("get", batch_path, ids))["status"] == "in_progress"
    assert (await call("post", batch_path + "/cancel", ids))["status"] == "cancelled"
    for state, count in (("in_progress", 2), ("failed", 1), ("cancelled", 1), ("completed", 0)):
        page = await call("get", "/vector_stores/{vector_store_id}/files", ids, params={"filter": state})
        assert [item["status"] for item in page["data"]] == [state] * count
    assert (await call("get", file_path + "/content", ids))["data"] == []
    world.stores.hold.set()
    while (await call("get", file_path, ids))["status"] == "in_progress":
        await asyncio.sleep(0.01)

    # once they are ingested
    await call("post", "/vector_stores/{vector_store_id}/file_batches", ids, json={"files": [{"file_id": files[3]}]})
    assert len((await call("get", batch_path + "/files", ids))["data"]) == 1
    assert (await call("post", file_path, ids, json={"attributes": attributes}))["attributes"] == attributes
    assert len((await call("get", file_path + "/content", ids))["data"]) == 2
    for parameter in ("include_embeddings", "include_metadata"):
        await call("get", file_path + "/content", ids, params={parameter: "true"})
    page = await call("post", store_path + "/search", ids, json={"query": ["night ferry", "bunks"]})
    assert page["data"]
    await call("get", store_path, ids)
    await call("post", store_path, ids, json={"name": "m", "metadata": None, "expires_after": None})
    await call("get", "/vector_stores", params={"limit": 1})

    # and gone
    await call("delete", file_path, ids)
    await call("delete", store_path, ids)
    await call("delete", "/files/{file_id}", ids)

    assert contract.asked == operations(document)


async def test_models_answer_as_the_document_says(http: httpx.AsyncClient, document: dict[str, Any]) -> None:
    contract = Contract(http, document)
    for inputs in ("a", ["a", "b"]):
        await contract.call("post", "/embeddings", json={"model": MODEL, "input": inputs, "encoding_format": "float"})
    await contract.call("get", "/models")
    await contract.call("get", "/models/{model}", {"model": MODEL})


async def test_every_kind_of_error_is_an_error_object(make_world: MakeWorld, document: dict[str, Any]) -> None:
    world = make_world(keys={"alice": "sk-alice"}, max_body_bytes=2000)
    async with world.http("sk-alice") as http, world.http() as stranger:
        call = Contract(http, document).call
        ids = {"vector_store_id": "vs_unknown", "file_id": "file-unknown", "batch_id": "vsfb_unknown"}
        embed = {"json": {"model": MODEL, "input": "a"}}
        await Contract(stranger, document).call("get", "/files", status=401)
        await call("post", "/embeddings", status=413, json={"model": MODEL, "input": "a" * 3000})
        await call("get", "/nowhere", status=404)
        await call("patch", "/files", status=405)
        for failure, status in ((Overloaded("full", 2), 429), (StoreUnavailable("gone"), 503), (ModelFailed("x"), 500)):
            world.embedder.fails = failure
            await call("post", "/embeddings", status=status, **embed)
        bodies: dict[str, Any] = {
            "/files": {"files": {"file": ("a.txt", b"x")}, "data": {"purpose": "homework"}},
            "/vector_stores": {"json": {"name": 5}},
            "/vector_stores/{vector_store_id}": {"json": {"name": 5}},
            "/vector_stores/{vector_store_id}/files": {"json": {}},
            "/vector_stores/{vector_store_id}/files/{file_id}": {"json": {}},
            "/vector_stores/{vector_store_id}/file_batches": {"json": {}},
            "/vector_stores/{vector_store_id}/search": {"json": {}},
        }
        for path, request in bodies.items():
            await call("post", path, ids, status=400, **request)
        good: dict[tuple[str, str], Any] = {
            ("post", "/vector_stores/{vector_store_id}/files"): {"file_id": "file-unknown"},
            ("post", "/vector_stores/{vector_store_id}/file_batches"): {"file_ids": ["file-unknown"]},
            ("post", "/vector_stores/{vector_store_id}/search"): {"query": "a"},
            ("post", "/vector_stores/{vector_store_id}/files/{file_id}"): {"attributes": {}},
            ("post", "/vector_stores/{vector_store_id}"): {},
        }
        world.embedder.fails = None
        for method, path in operations(document):
            if "{" in path:
                request = {"json": good[method, path]} if (method, path) in good else {}
                await call(method, path, ids, status=404, **request)
