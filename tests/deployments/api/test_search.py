"""POST /v1/vector_stores/{id}/search."""

from __future__ import annotations

import httpx
import pytest
from openai import AsyncOpenAI

from rag.errors import StoreUnavailable
from tests.deployments.api.world import World


async def fill(world: World, *files: tuple[str, dict | None]) -> str:
    """A store with these texts and attributes; the names are a.txt, b.txt, ..."""
    async with world.openai() as client:
        store = await client.vector_stores.create()
        for letter, (text, attributes) in zip("abcdefghijklmnopqrstuvwxyz", files, strict=False):
            file = await client.files.create(file=(f"{letter}.txt", text.encode()), purpose="assistants")
            attached = await client.vector_stores.files.create(
                vector_store_id=store.id, file_id=file.id, attributes=attributes
            )
            assert attached.status == "completed"
    return store.id


class Searcher:
    """One store, searched without the reranker unless told otherwise."""

    def __init__(self, http: httpx.AsyncClient, store_id: str) -> None:
        self.http = http
        self.store_id = store_id

    async def post(self, **body: object) -> httpx.Response:
        body = {"query": "word", "ranking_options": {"ranker": "none"}, "max_num_results": 50} | body
        body = {name: value for name, value in body.items() if value is not ...}
        return await self.http.post(f"/v1/vector_stores/{self.store_id}/search", json=body)

    async def page(self, **body: object) -> dict:
        response = await self.post(**body)
        assert response.status_code == 200, response.text
        return response.json()

    async def names(self, where: object = None, **body: object) -> str:
        """The first letters of the files found, sorted."""
        return "".join(sorted({hit["filename"][0] for hit in (await self.page(filters=where, **body))["data"]}))

    async def refused(self, **body: object) -> dict:
        response = await self.post(**body)
        assert response.status_code == 400, response.text
        return response.json()["error"]


def compare(op: str, key: str, value: object) -> dict:
    return {"type": op, "key": key, "value": value}


@pytest.fixture
def fill_with(world: World, http: httpx.AsyncClient):
    async def make(*files: tuple[str, dict | None]) -> Searcher:
        return Searcher(http, await fill(world, *files))

    return make


# --- the answer -----------------------------------------------------------------------------------------------------


async def test_a_hit_says_what_it_is_and_where_it_stands(fill_with) -> None:
    searcher = await fill_with(("first lines\n\nnight ferry", {"team": "sea", "deck": 2, "open": True}))
    page = await searcher.page(query="night ferry")
    assert {name: page[name] for name in page if name != "data"} == {
        "object": "vector_store.search_results.page",
        "search_query": ["night ferry"],
        "has_more": False,
        "next_page": None,
    }
    hit = page["data"][0]
    assert hit["content"] == [{"type": "text", "text": "night ferry"}]
    assert hit["attributes"] == {"team": "sea", "deck": 2, "open": True}
    assert hit["attributes"]["open"] is True
    assert hit["filename"] == "a.txt"
    assert hit["chunk_index"] == 1
    assert hit["char_range"] == [13, 24]
    assert 0 <= hit["score"] <= 1
    assert "page" not in hit  # a text has none


async def test_the_official_client_reads_the_page(world: World, client: AsyncOpenAI) -> None:
    store_id = await fill(world, ("night ferry", {"team": "sea"}), ("lamps", None))
    page = await client.vector_stores.search(
        store_id, query=["night ferry"], filters={"type": "eq", "key": "team", "value": "sea"}, max_num_results=5
    )
    assert [hit.content[0].text for hit in page.data] == ["night ferry"]
    assert page.data[0].attributes == {"team": "sea"}
    assert page.search_query == ["night ferry"]


async def test_an_empty_store_gives_an_empty_page(fill_with) -> None:
    searcher = await fill_with()
    assert (await searcher.page())["data"] == []


async def test_an_unknown_store_is_404_and_a_malformed_id_400(http: httpx.AsyncClient) -> None:
    assert (await Searcher(http, "vs_unknown").post()).status_code == 404
    error = await Searcher(http, "abc123").refused()
    assert (error["param"], error["code"]) == ("vector_store_id", "invalid_value")


async def test_the_stages_are_timed(fill_with) -> None:
    searcher = await fill_with(("word", None))
    stages = (await searcher.post(ranking_options=...)).headers["server-timing"]
    assert [stage.partition(";")[0] for stage in stages.split(", ")] == ["embed", "search", "rerank"]


# --- queries and limits ---------------------------------------------------------------------------------------------


async def test_a_list_of_queries_finds_the_best_of_each(fill_with) -> None:
    searcher = await fill_with(("night ferry bunks", None), ("lighthouse lamps", None), ("rubber ducks", None))
    queries = ["night ferry bunks", "lighthouse lamps"]
    page = await searcher.page(query=queries)
    assert page["search_query"] == queries
    assert {hit["filename"] for hit in page["data"][:2]} == {"a.txt", "b.txt"}
    assert len({hit["chunk_id"] for hit in page["data"]}) == len(page["data"]) == 3


@pytest.mark.parametrize("query", [[], "", ["a", ""], ["a", 5], 5, None, ["a"] * 17, {}])
async def test_a_bad_query_is_refused(fill_with, query: object) -> None:
    searcher = await fill_with()
    assert (await searcher.refused(query=query))["param"].startswith("query")


async def test_max_num_results_is_obeyed_within_its_bounds(fill_with) -> None:
    searcher = await fill_with(("\n\n".join(f"word {i}" for i in range(60)), None))
    for asked, given in ((1, 1), (10, 10), (50, 50), (None, 10), (..., 10)):
        assert len((await searcher.page(max_num_results=asked))["data"]) == given
    for asked, code in (
        (0, "integer_below_min_value"),
        (51, "integer_above_max_value"),
        ("5", "invalid_type"),
        (True, "invalid_type"),
        (5.5, "invalid_type"),
    ):
        error = await searcher.refused(max_num_results=asked)
        assert (error["param"], error["code"]) == ("max_num_results", code)


@pytest.mark.parametrize("ranker", ["auto", "none"])
async def test_the_threshold_compares_with_the_score_that_is_shown(fill_with, ranker: str) -> None:
    texts = ("night ferry bunks", "night ferry", "night", "lamps")
    searcher = await fill_with(*((text, None) for text in texts))

    async def found(**options: object) -> list[dict]:
        ranking = {"ranker": ranker, **options}
        return (await searcher.page(query="night ferry bunks", ranking_options=ranking))["data"]

    third = (await found())[2]["score"]
    assert len(await found(score_threshold=third)) == 3
    assert len(await found(score_threshold=third + 1e-6)) == 2
    assert len(await found(score_threshold=0)) == 4
    assert len(await found(score_threshold=None)) == 4
    for out in (1.5, -0.1, "0.5", True):
        error = await searcher.refused(ranking_options={"score_threshold": out})
        assert error["param"] == "ranking_options.score_threshold"


async def test_filter_and_threshold_act_together(fill_with) -> None:
    searcher = await fill_with(("night ferry", {"rare": False}), ("rubber ducks", {"rare": True}))
    options = {"ranker": "none", "score_threshold": 0.99}
    page = await searcher.page(query="night ferry", filters=compare("eq", "rare", True), ranking_options=options)
    assert page["data"] == []


# --- rankers --------------------------------------------------------------------------------------------------------


async def test_without_a_working_reranker_none_and_auto_still_answer(world: World, fill_with) -> None:
    searcher = await fill_with(("night ferry", None), ("lamps", None))
    world.reranker.fails = StoreUnavailable("The reranker is restarting.", 3)
    plain = await searcher.post(query="night ferry")
    assert plain.status_code == 200
    assert "x-rerank" not in plain.headers
    assert world.reranker.calls == []
    for ranker in ("auto", "default-2024-11-15"):
        fallen = await searcher.post(query="night ferry", ranking_options={"ranker": ranker})
        assert fallen.status_code == 200
        assert fallen.headers["x-rerank"] == "unavailable"
        assert fallen.json() == plain.json()
    named = await searcher.post(query="night ferry", ranking_options={"ranker": "overlap-reranker"})
    assert named.status_code == 503
    assert named.headers["retry-after"] == "3"
    assert (await searcher.refused(ranking_options={"ranker": "foo"}))["param"] == "ranking_options.ranker"


async def test_a_query_that_should_be_rewritten_is_searched_as_sent(fill_with) -> None:
    searcher = await fill_with(("Skarvik ferry", None))
    query = "  Skarvik   ferry?? "
    for rewrite, header in ((..., None), (False, None), (None, None), (True, "unavailable")):
        response = await searcher.post(query=query, rewrite_query=rewrite)
        assert response.json()["search_query"] == [query]
        assert response.headers.get("x-rewrite-query") == header


async def test_a_query_over_the_window_is_cut_and_the_header_says_so(world: World, fill_with) -> None:
    searcher = await fill_with(("word", None))
    response = await searcher.post(query="word " * 600)
    assert response.status_code == 200
    assert response.headers["x-query-truncated"] == "true"


# --- filters --------------------------------------------------------------------------------------------------------


async def test_booleans_numbers_and_strings_are_different_values(fill_with) -> None:
    values = (True, 1, "true", "1", False)
    searcher = await fill_with(*(("word", {"flag": value}) for value in values))
    for value, letter in zip(values, "abcde", strict=True):
        assert await searcher.names(compare("eq", "flag", value)) == letter
    assert await searcher.names(compare("eq", "flag", 1.0)) == "b"
    assert await searcher.names(compare("in", "flag", [1, "true"])) == "bc"


async def test_a_missing_key_matches_the_negations_alone(fill_with) -> None:
    searcher = await fill_with(
        ("word", {"colour": "red"}), ("word", {"colour": "blue"}), ("word", {"colour": 7}), ("word", None)
    )
    assert await searcher.names(compare("ne", "colour", "red")) == "bcd"
    assert await searcher.names(compare("nin", "colour", ["red", "blue"])) == "cd"
    assert await searcher.names(compare("eq", "colour", "red")) == "a"
    assert await searcher.names(compare("gt", "colour", "a")) == "ab"


async def test_empty_lists_and_malformed_filters(fill_with) -> None:
    searcher = await fill_with(("word", {"a": 1}), ("word", None))
    assert await searcher.names(compare("in", "a", [])) == ""
    assert await searcher.names(compare("nin", "a", [])) == "ab"
    deep = compare("eq", "a", 1)
    for _ in range(40):
        deep = {"type": "and", "filters": [deep]}
    for bad in (
        {"type": "and", "filters": []},
        {"type": "or", "filters": []},
        compare("like", "a", 1),
        {"type": "eq", "value": 1},
        compare("eq", "", 1),
        compare("eq", "a", None),
        deep,
        "a = 1",
    ):
        assert (await searcher.refused(filters=bad))["param"].startswith("filters")


async def test_awkward_keys_and_values_are_only_keys_and_values(fill_with) -> None:
    keys = ("a.b", "a[0]", "it's", 'say "hi"', "$", "*", "two words", "clé")
    searcher = await fill_with(*(("word", {key: "x"}) for key in keys), ("word", {"a": "x"}))
    for key, letter in zip(keys, "abcdefgh", strict=True):
        assert await searcher.names(compare("eq", key, "x")) == letter
    assert await searcher.names(compare("eq", "it's", "x' OR '1'='1")) == ""


async def test_a_filter_finds_the_few_among_the_many(fill_with) -> None:
    baking = "\n\n".join(f"sourdough bread recipe {i}" for i in range(500))
    tides = [(f"tide table {i}", {"rare": True}) for i in range(3)]
    searcher = await fill_with((baking, None), *tides)
    where = compare("eq", "rare", True)
    assert await searcher.names(where, query="sourdough", max_num_results=10) == "bcd"


async def test_nan_and_infinity_are_no_numbers(fill_with, http: httpx.AsyncClient) -> None:
    searcher = await fill_with()
    headers = {"content-type": "application/json"}
    for path, body in (
        (f"/v1/vector_stores/{searcher.store_id}/search", '{"query":"a","ranking_options":{"score_threshold":NaN}}'),
        (f"/v1/vector_stores/{searcher.store_id}/search", '{"query":"a","ranking_options":{"score_threshold":1e999}}'),
        (f"/v1/vector_stores/{searcher.store_id}/files", '{"file_id":"file-a","attributes":{"x":Infinity}}'),
        (f"/v1/vector_stores/{searcher.store_id}/files", '{"file_id":"file-a","attributes":{"x":-1e999}}'),
        ("/v1/rerank", '{"query":"a","documents":["b"],"top_n":NaN}'),
    ):
        response = await http.post(path, content=body, headers=headers)
        assert response.status_code == 400, body
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
