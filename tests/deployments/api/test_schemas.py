"""Answers against OpenAI's own document, where it lies beside the repository."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from jsonschema import Draft202012Validator

from tests.deployments.api.world import MODEL

DOCUMENT = Path(__file__).parents[4] / "shared" / "contracts" / "openai-vector-stores.yaml"
EXTENSIONS = ("chunk_id", "chunk_index", "char_range")  # of a hit, beyond the document
pytestmark = pytest.mark.skipif(not DOCUMENT.exists(), reason="OpenAI's document is not here")


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return yaml.load(DOCUMENT.read_bytes(), yaml.CSafeLoader)


async def test_answers_have_the_shape_that_the_document_gives_them(
    document: dict[str, Any], http: httpx.AsyncClient
) -> None:
    def validate(schema: str, answer: dict[str, Any]) -> None:
        root = {"$ref": f"#/components/schemas/{schema}", "components": document["components"]}
        Draft202012Validator(root).validate(answer)

    def check(schema: str, response: httpx.Response) -> dict[str, Any]:
        assert response.status_code == 200, response.text
        validate(schema, response.json())
        return response.json()

    upload = {"files": {"file": ("a.txt", b"night ferry")}, "data": {"purpose": "assistants"}}
    file = check("OpenAIFile", await http.post("/v1/files", **upload))
    check("ListFilesResponse", await http.get("/v1/files"))
    body = {"name": "n", "file_ids": [file["id"]], "expires_after": {"anchor": "last_active_at", "days": 1}}
    store = check("VectorStoreObject", await http.post("/v1/vector_stores", json=body))
    path = f"/v1/vector_stores/{store['id']}"
    check("VectorStoreObject", await http.post(path, json={"metadata": {"a": "b"}}))
    check("ListVectorStoresResponse", await http.get("/v1/vector_stores"))
    check("VectorStoreFileObject", await http.post(f"{path}/files", json={"file_id": file["id"]}))
    check("VectorStoreFileObject", await http.get(f"{path}/files/{file['id']}"))
    check("ListVectorStoreFilesResponse", await http.get(f"{path}/files"))
    found = await http.post(f"{path}/search", json={"query": "night ferry"})
    page = found.json()
    page["data"] = [{name: hit[name] for name in hit if name not in EXTENSIONS} for hit in page["data"]]
    validate("VectorStoreSearchResultsPage", page)
    check("DeleteVectorStoreFileResponse", await http.delete(f"{path}/files/{file['id']}"))
    check("DeleteVectorStoreResponse", await http.delete(path))
    check("DeleteFileResponse", await http.delete(f"/v1/files/{file['id']}"))
    check("CreateEmbeddingResponse", await http.post("/v1/embeddings", json={"model": MODEL, "input": ["a"]}))
    check("ListModelsResponse", await http.get("/v1/models"))
