"""POST /v1/rerank, read as the clients of Cohere and Jina read it."""

from __future__ import annotations

import cohere
import httpx
import pytest
from pydantic import BaseModel, ConfigDict

from tests.deployments.api.world import RERANKER, MakeWorld, World

QUERY = "when does the night ferry leave"
DOCUMENTS = ["the night ferry leaves at nine", "lighthouse lamps", "when the tide turns"]


class Strict(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)


class JinaDocument(Strict):
    text: str


class JinaResult(Strict):
    index: int
    relevance_score: float
    document: JinaDocument = JinaDocument(text="")  # null is no document


class JinaUsage(Strict):
    total_tokens: int
    prompt_tokens: int


class JinaAnswer(Strict):
    model: str
    object: str
    usage: JinaUsage
    results: list[JinaResult]


async def post(http: httpx.AsyncClient, path: str = "/v1/rerank", **body: object) -> httpx.Response:
    return await http.post(path, json={"model": RERANKER, "query": QUERY, "documents": DOCUMENTS, **body})


async def refused(http: httpx.AsyncClient, **body: object) -> dict:
    response = await post(http, **body)
    assert response.status_code == 400, response.text
    return response.json()["error"]


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
async def test_every_address_gives_the_same_ranking(http: httpx.AsyncClient, path: str) -> None:
    answer = JinaAnswer.model_validate_json((await post(http, path)).content)
    assert [result.index for result in answer.results] == [0, 2, 1]
    scores = [result.relevance_score for result in answer.results]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)
    assert answer.model == RERANKER


async def test_documents_come_back_only_when_asked_for(http: httpx.AsyncClient) -> None:
    for asked in ({}, {"return_documents": False}, {"return_documents": None}):
        answer = (await post(http, **asked)).json()
        assert all(set(result) == {"index", "relevance_score"} for result in answer["results"])
        assert isinstance(answer["id"], str)
        assert None not in answer["meta"].values()
    for result in (await post(http, return_documents=True)).json()["results"]:
        assert result["document"] == {"text": DOCUMENTS[result["index"]]}


async def test_documents_may_be_objects_with_a_text(http: httpx.AsyncClient) -> None:
    mixed = [DOCUMENTS[0], {"text": DOCUMENTS[1], "id": "b7"}, {"text": DOCUMENTS[2]}]
    plain = (await post(http)).json()["results"]
    assert (await post(http, documents=mixed)).json()["results"] == plain
    for bad in ({"id": "b7"}, {"text": None}, 5, None):
        error = await refused(http, documents=[*mixed, bad])
        assert error["param"] == "documents[3]"


@pytest.mark.parametrize(("top_n", "count"), [(1, 1), (2, 2), (3, 3), (99, 3), (None, 3)])
async def test_top_n_cuts_and_never_fails_above_the_number_of_documents(
    http: httpx.AsyncClient, top_n: int | None, count: int
) -> None:
    assert len((await post(http, top_n=top_n)).json()["results"]) == count


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"top_n": 0}, "top_n"),
        ({"top_n": -1}, "top_n"),
        ({"top_n": "2"}, "top_n"),
        ({"top_n": True}, "top_n"),
        ({"top_n": 1.5}, "top_n"),
        ({"documents": []}, "documents"),
        ({"documents": "one"}, "documents"),
        ({"documents": None}, "documents"),
        ({"documents": ["a"] * 10_001}, "documents"),
        ({"query": ""}, "query"),
        ({"query": None}, "query"),
        ({"query": ["a"]}, "query"),
        ({"max_tokens_per_doc": 0}, "max_tokens_per_doc"),
    ],
)
async def test_a_bad_request_names_the_parameter(http: httpx.AsyncClient, body: dict, param: str) -> None:
    assert (await refused(http, **body))["param"] == param


async def test_an_empty_document_is_scored_like_any_other(http: httpx.AsyncClient) -> None:
    results = (await post(http, documents=["ferry", ""])).json()["results"]
    assert [result["index"] for result in results] == [0, 1]


async def test_duplicates_keep_their_own_index(http: httpx.AsyncClient) -> None:
    results = (await post(http, documents=["ferry", "lamps", "ferry"])).json()["results"]
    assert [result["index"] for result in results] == [0, 2, 1]


async def test_the_model_may_be_left_out_but_not_be_another(http: httpx.AsyncClient, make_world: MakeWorld) -> None:
    assert (await post(http, model=None)).json()["model"] == RERANKER
    other = await post(http, model="bge-m9")
    assert other.status_code == 404
    assert other.json()["error"]["code"] == "model_not_found"
    async with make_world(reranker=False).http() as without:
        assert (await post(without)).status_code == 404


async def test_a_document_is_read_no_further_than_asked(world: World, http: httpx.AsyncClient) -> None:
    body = {"query": "nine", "documents": ["the night ferry leaves at nine"]}
    assert (await post(http, **body)).json()["results"][0]["relevance_score"] == 1.0
    assert (await post(http, **body, max_tokens_per_doc=5)).json()["results"][0]["relevance_score"] == 0.0


@pytest.mark.parametrize("version", [cohere.AsyncClient, cohere.AsyncClientV2])
async def test_the_cohere_clients_parse_the_answer(world: World, version: type) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(world.app)) as transport:
        client = version(api_key="any", base_url="http://app", httpx_client=transport)
        answer = await client.rerank(model=RERANKER, query=QUERY, documents=DOCUMENTS, top_n=2)
    assert [result.index for result in answer.results] == [0, 2]
    assert answer.results[0].relevance_score > answer.results[1].relevance_score
    assert answer.meta.billed_units.search_units == 1
