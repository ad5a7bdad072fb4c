"""The search pipeline over doubles."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rag.errors import InvalidRequest, ModelFailed, ModelMismatch, NotFound, Overloaded, RagError, StoreUnavailable
from rag.filters import Comparison
from rag.search import SearchPipeline, SearchRequest
from rag.settings import SearchSettings
from rag.types import FileRecord, Kind, NewAttachment, VectorStoreRecord
from tests.doubles import FolderBlobs, HashEmbedder, MemoryStores, OverlapReranker, ParagraphIngestor

OWNER = "alice"
NOW = 1_700_000_000


class Library:
    """Stores filled with texts, and a pipeline over them."""

    def __init__(self, folder: Path, *, candidates: int = 20) -> None:
        self.embedder = HashEmbedder()
        self.reranker = OverlapReranker()
        self.blobs = FolderBlobs(folder)
        self.stores = MemoryStores(ParagraphIngestor(self.blobs, self.embedder))
        self.settings = SearchSettings(candidates=candidates)

    def pipeline(self, *, reranker: bool = True) -> SearchPipeline:
        served = self.reranker if reranker else None
        return SearchPipeline(
            self.embedder, served, self.stores, self.settings, reranker_aliases=("the-reranker",) if reranker else ()
        )

    async def fill(self, store_id: str, *texts: str, **attributes: str) -> None:
        record = VectorStoreRecord(store_id, OWNER, "", NOW, NOW, self.embedder.model)
        await self.stores.create_store(record)
        for number, text in enumerate(texts):
            file_id = f"file-{store_id}-{number}"
            (self.blobs.folder / file_id).write_text(text)
            await self.stores.create_file(FileRecord(file_id, OWNER, f"{number}.txt", 1, "assistants", NOW, ""))
            await self.stores.attach(OWNER, store_id, NewAttachment(file_id, attributes), wait_s=10)
        self.embedder.calls.clear()


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(tmp_path)


def ask(*queries: str, stores: tuple[str, ...] = ("vs_1",), **options: object) -> SearchRequest:
    return SearchRequest(stores, queries, **options)


async def test_the_best_passage_comes_first_with_its_stages_timed(library: Library) -> None:
    await library.fill("vs_1", "the lighthouse lamps are lit", "the night ferry leaves at nine")
    result = await library.pipeline().search(OWNER, ask("night ferry"))
    assert result.hits[0].chunk.text == "the night ferry leaves at nine"
    assert set(result.timings) == {"embed", "search", "rerank"}
    assert result.notes == {}


async def test_queries_are_embedded_as_queries_in_one_call(library: Library) -> None:
    await library.fill("vs_1", "a")
    await library.pipeline().search(OWNER, ask("one", "two"))
    assert [(texts, kind) for texts, kind, _ in library.embedder.calls] == [(["one", "two"], Kind.QUERY)]


async def test_an_empty_store_gives_an_empty_page_and_is_not_reranked(library: Library) -> None:
    await library.fill("vs_1")
    assert (await library.pipeline().search(OWNER, ask("ferry"))).hits == ()
    assert library.reranker.calls == []


async def test_ranker_none_makes_no_call_to_the_reranker(library: Library) -> None:
    await library.fill("vs_1", "night ferry", "lighthouse")
    result = await library.pipeline().search(OWNER, ask("ferry", ranker="none"))
    assert len(result.hits) == 2
    assert library.reranker.calls == []
    assert "rerank" not in result.timings


async def test_the_settings_decide_where_no_ranker_is_asked_for(library: Library) -> None:
    library.settings = SearchSettings(ranker="none")
    await library.fill("vs_1", "night ferry")
    await library.pipeline().search(OWNER, ask("ferry"))
    assert library.reranker.calls == []
    await library.pipeline().search(OWNER, ask("ferry", ranker="auto"))
    assert len(library.reranker.calls) == 1


@pytest.mark.parametrize("ranker", ["auto", "default-2024-11-15", "overlap-reranker", "the-reranker"])
async def test_each_name_of_the_reranker_reranks(library: Library, ranker: str) -> None:
    await library.fill("vs_1", "night ferry", "lighthouse")
    await library.pipeline().search(OWNER, ask("ferry", ranker=ranker))
    assert len(library.reranker.calls) == 1


async def test_auto_without_a_reranker_keeps_the_order_of_retrieval(library: Library) -> None:
    await library.fill("vs_1", "night ferry", "lighthouse")
    result = await library.pipeline(reranker=False).search(OWNER, ask("ferry", ranker="default-2024-11-15"))
    assert [hit.chunk.text for hit in result.hits] == ["night ferry", "lighthouse"]


@pytest.mark.parametrize("ranker", ["foo", "rrf", "weighted", "normalized", ""])
async def test_an_unknown_ranker_is_refused_by_name(library: Library, ranker: str) -> None:
    await library.fill("vs_1", "night ferry")
    if not ranker:  # empty means absent
        await library.pipeline().search(OWNER, ask("ferry", ranker=ranker))
        return
    with pytest.raises(InvalidRequest, match=ranker) as caught:
        await library.pipeline().search(OWNER, ask("ferry", ranker=ranker))
    assert caught.value.param == "ranking_options.ranker"


@pytest.mark.parametrize("error", [Overloaded("full"), StoreUnavailable("gone"), ModelFailed("NaN")])
async def test_a_failing_reranker_leaves_the_order_of_retrieval_and_says_so(library: Library, error: RagError) -> None:
    await library.fill("vs_1", "night ferry", "lighthouse")
    library.reranker.fails = error
    result = await library.pipeline().search(OWNER, ask("ferry", limit=1))
    assert [hit.chunk.text for hit in result.hits] == ["night ferry"]
    assert result.notes == {"X-Rerank": "unavailable"}


@pytest.mark.parametrize(
    ("error", "expected"), [(Overloaded("full"), Overloaded), (ModelFailed("NaN"), StoreUnavailable)]
)
async def test_a_failing_reranker_that_was_named_is_an_error(
    library: Library, error: RagError, expected: type[RagError]
) -> None:
    await library.fill("vs_1", "night ferry")
    library.reranker.fails = error
    with pytest.raises(expected):
        await library.pipeline().search(OWNER, ask("ferry", ranker="overlap-reranker"))


async def test_a_query_too_long_for_the_reranker_alone_skips_it(library: Library) -> None:
    library.reranker = OverlapReranker(max_tokens=8)
    await library.fill("vs_1", "night ferry")
    query = " ".join(f"word{i}" for i in range(20))
    result = await library.pipeline().search(OWNER, ask(query))
    assert result.notes == {"X-Rerank": "skipped-query-too-long"}
    with pytest.raises(InvalidRequest):
        await library.pipeline().search(OWNER, ask(query, ranker="overlap-reranker"))


async def test_a_long_query_is_cut_and_the_answer_says_so(library: Library) -> None:
    library.embedder = HashEmbedder(max_tokens=6)
    library.stores.ingestor = ParagraphIngestor(library.blobs, library.embedder)
    await library.fill("vs_1", "one two three four")
    cut = await library.pipeline().search(OWNER, ask("one two three four five", ranker="none"))
    whole = await library.pipeline().search(OWNER, ask("one two three four", ranker="none"))
    assert cut.notes == {"X-Query-Truncated": "true"}
    assert whole.notes == {}
    assert cut.hits[0].score == whole.hits[0].score


async def test_several_stores_give_one_ranking_and_one_cap(library: Library) -> None:
    await library.fill("vs_1", *(["night ferry bunks"] * 6))
    await library.fill("vs_2", *(["night ferry bunks and lamps"] * 6))
    request = ask("night ferry bunks and lamps", stores=("vs_1", "vs_2", "vs_1"), limit=4)
    result = await library.pipeline().search(OWNER, request)
    assert len(result.hits) == 4
    assert {hit.store_id for hit in result.hits} == {"vs_2"}
    scores = [hit.score for hit in result.hits]
    assert scores == sorted(scores, reverse=True)


async def test_each_query_finds_its_own_and_no_chunk_comes_twice(library: Library) -> None:
    texts = ["night ferry bunks", "lighthouse lamps", "rubber ducks"]
    await library.fill("vs_1", *texts)
    for ranker in ("none", "auto"):
        result = await library.pipeline().search(OWNER, ask(texts[0], texts[1], ranker=ranker))
        assert {hit.chunk.text for hit in result.hits[:2]} == set(texts[:2])
        assert len({hit.chunk_id for hit in result.hits}) == len(result.hits) == 3
        assert result.queries == (texts[0], texts[1])
    for query, passages in library.reranker.calls:
        assert query in passages  # each query scored what matches it best


async def test_equal_scores_are_ordered_by_chunk(library: Library) -> None:
    await library.fill("vs_1", *(["the same words"] * 5))
    for ranker in ("none", "auto"):
        hits = (await library.pipeline().search(OWNER, ask("the same words", ranker=ranker))).hits
        assert [hit.chunk_id for hit in hits] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("ranker", ["none", "auto"])
async def test_the_threshold_sees_exactly_the_score_that_is_shown(library: Library, ranker: str) -> None:
    await library.fill("vs_1", "night ferry bunks", "night ferry", "night", "lamps")
    pipeline = library.pipeline()
    hits = (await pipeline.search(OWNER, ask("night ferry bunks", ranker=ranker))).hits
    third = hits[2].score

    async def kept(threshold: float) -> int:
        found = await pipeline.search(OWNER, ask("night ferry bunks", ranker=ranker, score_threshold=threshold))
        return len(found.hits)

    assert await kept(third) == 3
    assert await kept(third + 1e-6) == 2
    assert await kept(0.0) == 4


async def test_more_candidates_are_reranked_than_are_returned(library: Library) -> None:
    library.settings = SearchSettings(candidates=3)
    await library.fill("vs_1", *(f"ferry {i}" for i in range(5)))
    result = await library.pipeline().search(OWNER, ask("ferry", limit=1))
    assert len(library.reranker.calls[0][1]) == 3
    assert len(result.hits) == 1
    await library.pipeline().search(OWNER, ask("ferry", limit=4))
    assert len(library.reranker.calls[1][1]) == 4


async def test_a_filter_chooses_before_the_ranking(library: Library) -> None:
    await library.fill("vs_1", "night ferry", rare="yes")
    where = Comparison("rare", "eq", "no")
    assert (await library.pipeline().search(OWNER, ask("night ferry", where=where))).hits == ()


async def test_a_store_of_another_model_is_refused_with_both_names(library: Library) -> None:
    await library.fill("vs_1", "night ferry")
    library.embedder.model = replace(library.embedder.model, id="newer-model", revision="7")
    with pytest.raises(ModelMismatch, match=r"'hash-embedder'.*'newer-model'.*revision 7"):
        await library.pipeline().search(OWNER, ask("night ferry"))


async def test_a_foreign_or_unknown_store_is_not_found(library: Library) -> None:
    await library.fill("vs_1", "night ferry")
    for owner, stores in (("bob", ("vs_1",)), (OWNER, ("vs_1", "vs_2"))):
        with pytest.raises(NotFound):
            await library.pipeline().search(owner, ask("night ferry", stores=stores))


async def test_a_full_embedder_refuses_the_search(library: Library) -> None:
    await library.fill("vs_1", "night ferry")
    library.embedder.fails = Overloaded("full")
    with pytest.raises(Overloaded):
        await library.pipeline().search(OWNER, ask("night ferry"))


async def test_an_expired_store_is_refused_with_the_reason(library: Library) -> None:
    await library.fill("vs_1")
    library.stores.clock = lambda: NOW
    await library.stores.update_store(OWNER, "vs_1", {"expires_after_days": 7})
    await library.pipeline().search(OWNER, ask("ferry"))
    library.stores.clock = lambda: NOW + 7 * 86_400
    with pytest.raises(InvalidRequest, match="7 days"):
        await library.pipeline().search(OWNER, ask("ferry"))


async def test_rewriting_falls_back_to_the_query_as_it_was_sent(library: Library) -> None:
    await library.fill("vs_1", "Skarvik ferry")
    result = await library.pipeline().search(OWNER, ask("  Skarvik   ferry?? ", rewrite_query=True))
    assert result.queries == ("  Skarvik   ferry?? ",)
    assert result.notes == {"X-Rewrite-Query": "unavailable"}


@pytest.mark.parametrize(
    ("queries", "options", "param"),
    [
        ((), {}, "query"),
        (("x",) * 17, {}, "query"),
        (("x", ""), {}, "query"),
        (("x",), {"limit": 0}, "max_num_results"),
        (("x",), {"score_threshold": 1.5}, "ranking_options.score_threshold"),
        (("x",), {"score_threshold": float("nan")}, "ranking_options.score_threshold"),
    ],
)
def test_a_request_out_of_range_cannot_be_made(queries: tuple[str, ...], options: dict, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        SearchRequest(("vs_1",), queries, **options)
    assert caught.value.param == param


# --- distinct -------------------------------------------------------------------------------------------------------


async def test_the_same_text_may_be_asked_for_once_and_the_page_is_full_all_the_same(library: Library) -> None:
    library.settings = SearchSettings(candidates=1)
    await library.fill("vs_1", *["the night ferry"] * 9, "the night ferry leaves", *["the ferry"] * 3, "a ferry")
    await library.fill("vs_2", "the night ferry", "no ferry today")
    pipeline = library.pipeline(reranker=False)
    request = ask("the night ferry", stores=("vs_1", "vs_2"), limit=4)
    plain = [hit.chunk.text for hit in (await pipeline.search(OWNER, request)).hits]
    assert plain == ["the night ferry"] * 4
    found = (await pipeline.search(OWNER, replace(request, distinct=True))).hits
    assert len({hit.chunk.text for hit in found}) == len(found) == 4
    assert found[0].chunk.text == "the night ferry"
    assert [hit.score for hit in found] == sorted((hit.score for hit in found), reverse=True)


async def test_distinct_does_not_read_a_store_full_of_one_text(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rag.search.DEEPEST", 20)
    await library.fill("vs_1", *["the night ferry"] * 30, "a ferry")
    found = (await library.pipeline(reranker=False).search(OWNER, ask("the night ferry", limit=5, distinct=True))).hits
    assert [hit.chunk.text for hit in found] == ["the night ferry"]


async def test_distinct_ends_where_there_is_nothing_more(library: Library) -> None:
    await library.fill("vs_1", *["the night ferry"] * 30, "a ferry")
    found = (await library.pipeline().search(OWNER, ask("ferry", limit=5, distinct=True))).hits
    assert sorted(hit.chunk.text for hit in found) == ["a ferry", "the night ferry"]
    ((_, passages),) = library.reranker.calls
    assert len(passages) == 2
