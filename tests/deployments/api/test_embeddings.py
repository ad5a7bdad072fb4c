"""POST /v1/embeddings."""

from __future__ import annotations

import base64
import math

import httpx
import numpy as np
import openai
import pytest
from openai import AsyncOpenAI

from rag.errors import Overloaded
from rag.types import Kind
from tests.deployments.api.world import MODEL, MakeWorld, World
from tests.doubles import HashEmbedder

NATIVE = 64


async def post(http: httpx.AsyncClient, **body: object) -> httpx.Response:
    return await http.post("/v1/embeddings", json={"model": MODEL, **body})


async def refused(http: httpx.AsyncClient, **body: object) -> dict:
    response = await post(http, **body)
    assert response.status_code == 400, response.text
    return response.json()["error"]


async def test_base64_and_float_give_the_same_vector(http: httpx.AsyncClient) -> None:
    vectors = []
    for form in ({}, {"encoding_format": "float"}, {"encoding_format": None}):
        vectors.append((await post(http, input="tern colony", **form)).json()["data"][0]["embedding"])
    packed = (await post(http, input="tern colony", encoding_format="base64")).json()["data"][0]["embedding"]
    assert len(packed) == 4 * math.ceil(NATIVE * 4 / 3)
    unpacked = np.frombuffer(base64.b64decode(packed), "<f4")
    assert len(unpacked) == NATIVE
    for vector in vectors:
        np.testing.assert_allclose(unpacked, vector, atol=1e-6)
    assert (await refused(http, input="tern colony", encoding_format="hex"))["param"] == "encoding_format"


async def test_the_official_client_reads_its_default_and_the_plain_form(client: AsyncOpenAI) -> None:
    packed = await client.embeddings.create(model=MODEL, input=["tern", "colony"])
    plain = await client.embeddings.create(model=MODEL, input=["tern", "colony"], encoding_format="float")
    assert [item.index for item in packed.data] == [0, 1]
    np.testing.assert_allclose(packed.data[1].embedding, plain.data[1].embedding, atol=1e-6)
    assert packed.usage.prompt_tokens == packed.usage.total_tokens == 6
    assert packed.model == MODEL


async def test_repeats_keep_their_own_index(http: httpx.AsyncClient) -> None:
    a, b, c = "red buoy", "green buoy", "fog horn"
    first = (await post(http, input=[a, b])).json()["data"]
    second = (await post(http, input=[a, c, b, a])).json()["data"]
    assert [item["index"] for item in second] == [0, 1, 2, 3]
    assert second[0]["embedding"] == second[3]["embedding"] == first[0]["embedding"]
    assert second[2]["embedding"] == first[1]["embedding"]


async def test_token_ids_are_embedded_as_the_text_they_spell(http: httpx.AsyncClient) -> None:
    text = (await post(http, input="hello world")).json()["data"]
    assert (await post(http, input=[15339, 1917])).json()["data"] == text
    assert (await post(http, input=[[15339, 1917]])).json()["data"] == text


async def test_over_the_window_is_refused_with_the_counts_unless_it_may_be_cut(
    world: World, http: httpx.AsyncClient
) -> None:
    world.embedder.model = HashEmbedder(max_tokens=12).model
    text = "tide " * 20
    for form in (text, ["short", text]):
        error = await refused(http, input=form)
        assert "12" in error["message"]
        assert "22" in error["message"]
    assert error["param"] == "input[1]"
    cut = (await post(http, input=[text], truncate=True)).json()["data"][0]["embedding"]
    assert cut == (await post(http, input="tide " * 10)).json()["data"][0]["embedding"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": ""}, "input[0]"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": None}, "input"),
        ({"input": {"text": "a"}}, "input"),
        ({"input": ["a", 5]}, "input[1]"),
        ({"input": [True]}, "input[0]"),
        ({"input": [[]]}, "input[0]"),
        ({"input": ["a"] * 2049}, "input"),
        ({}, "input"),
        ({"input": "a", "dimensions": 63}, "dimensions"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": "64"}, "dimensions"),
        ({"input": "a", "dimensions": True}, "dimensions"),
        ({"input": "a", "model": 7}, "model"),
        ({"input": "a", "input_type": "poem"}, "input_type"),
    ],
)
async def test_a_bad_request_names_the_parameter(http: httpx.AsyncClient, body: dict, param: str) -> None:
    error = await refused(http, **body)
    assert error["param"] == param
    assert param.partition("[")[0] in error["message"].lower()


async def test_nulls_and_unknown_fields_are_harmless(http: httpx.AsyncClient) -> None:
    response = await post(http, input="a", user=None, dimensions=None, encoding_format="float", foo=1)
    assert response.status_code == 200
    assert (await post(http, input="a", dimensions=NATIVE)).status_code == 200


async def test_an_unknown_model_is_not_found(client: AsyncOpenAI, http: httpx.AsyncClient) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        await client.embeddings.create(model="bge-m9", input="a")
    assert caught.value.code == "model_not_found"
    assert caught.value.type == "invalid_request_error"
    assert MODEL in caught.value.message
    assert (await post(http, model="org/alias", input="a")).json()["model"] == "org/alias"


@pytest.mark.parametrize(
    ("input_type", "kind"),
    [
        (None, Kind.PASSAGE),
        ("passage", Kind.PASSAGE),
        ("search_document", Kind.PASSAGE),
        ("query", Kind.QUERY),
        ("search_query", Kind.QUERY),
    ],
)
async def test_a_text_may_say_on_which_side_it_stands(
    world: World, http: httpx.AsyncClient, input_type: str | None, kind: Kind
) -> None:
    assert (await post(http, input="a", input_type=input_type)).status_code == 200
    assert world.embedder.calls[-1][1] == kind


async def test_a_full_queue_is_429_with_the_seconds_to_wait(world: World, client: AsyncOpenAI) -> None:
    world.embedder.fails = Overloaded("The embedder is full.", 7)
    with pytest.raises(openai.RateLimitError, match="full") as caught:
        await client.embeddings.create(model=MODEL, input="a")
    assert caught.value.response.headers["retry-after"] == "7"


async def test_the_time_of_the_model_travels_with_the_answer(http: httpx.AsyncClient) -> None:
    assert (await post(http, input="a")).headers["server-timing"].startswith("embed;dur=")


async def test_models_are_listed_and_found_by_names_with_slashes(client: AsyncOpenAI, make_world: MakeWorld) -> None:
    assert [model.id async for model in await client.models.list()] == [MODEL, "overlap-reranker"]
    assert (await client.models.retrieve("org/alias")).id == "org/alias"
    with pytest.raises(openai.NotFoundError) as caught:
        await client.models.retrieve("BAAI/bge-m9")
    assert caught.value.code == "model_not_found"
