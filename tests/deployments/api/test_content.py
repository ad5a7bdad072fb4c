"""GET /v1/vector_stores/{id}/files/{file_id}/content."""

from __future__ import annotations

import re

import httpx
import numpy as np
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncOpenAI

from deployments.api.content import running
from rag.chunking import split
from rag.types import Chunk, ChunkingStrategy, Int32, Section
from tests.deployments.api.world import MODEL

TEXT = "The ferry leaves\nat nine.\n\n\nBunks are upstairs; größer ist der Salon.\n\nBreakfast at six."


async def attach(client: AsyncOpenAI, text: str = TEXT, **request: object) -> tuple[str, str]:
    """A store with one file; gives the ids of both."""
    store = await client.vector_stores.create()
    file = await client.files.create(file=("ferry.txt", text.encode()), purpose="assistants")
    await client.vector_stores.files.create(vector_store_id=store.id, file_id=file.id, **request)
    return store.id, file.id


async def content(http: httpx.AsyncClient, store_id: str, file_id: str, **query: str) -> list[dict]:
    response = await http.get(f"/v1/vector_stores/{store_id}/files/{file_id}/content", params=query)
    assert response.status_code == 200, response.text
    page = response.json()
    assert {name: page[name] for name in page if name != "data"} == {
        "object": "vector_store.file_content.page",
        "has_more": False,
        "next_page": None,
    }
    assert all(set(item) == {"type", "text", "embedding", "metadata", "chunk_metadata"} for item in page["data"])
    return page["data"]


async def test_the_official_client_reads_the_text(client: AsyncOpenAI) -> None:
    store_id, file_id = await attach(client)
    page = await client.vector_stores.files.content(file_id, vector_store_id=store_id)
    assert [item.type for item in page.data] == ["text"] * 3
    assert "".join(item.text or "" for item in page.data) == re.sub(r"\n\n+", "\n", TEXT)


async def test_a_file_of_one_chunk_comes_back_letter_by_letter(client: AsyncOpenAI, http: httpx.AsyncClient) -> None:
    text = "A tern  colony;\n größer,\tand a red buoy \U0001f6a2"
    items = await content(http, *(await attach(client, text)))
    assert [item["text"] for item in items] == [text]
    assert items[0]["embedding"] is items[0]["metadata"] is items[0]["chunk_metadata"] is None


async def test_chunks_come_with_what_was_asked_for(client: AsyncOpenAI, http: httpx.AsyncClient) -> None:
    store_id, file_id = await attach(client, attributes={"deck": 2, "open": True})
    paragraphs = re.split(r"\n\n+", TEXT)
    plain = await content(http, store_id, file_id, include_metadata="true")
    assert [item["text"] for item in plain] == paragraphs
    assert all(item["embedding"] is None for item in plain)
    assert plain[1]["metadata"] == {
        "file_id": file_id,
        "filename": "ferry.txt",
        "attributes": {"deck": 2, "open": True},
    }
    place = plain[1]["chunk_metadata"]
    assert TEXT[place["start"] : place["end"]] == paragraphs[1]
    assert (place["ordinal"], place["page"], place["page_last"], place["heading"]) == (1, None, None, None)
    assert place["token_count"] > 0

    embedded = await content(http, store_id, file_id, include_embeddings="true")
    assert all(item["metadata"] is item["chunk_metadata"] is None for item in embedded)
    direct = await client.embeddings.create(model=MODEL, input=paragraphs, encoding_format="float")
    np.testing.assert_allclose([item["embedding"] for item in embedded], [row.embedding for row in direct.data])

    both = await content(http, store_id, file_id, include_embeddings="true", include_metadata="true")
    assert [item["embedding"] for item in both] == [item["embedding"] for item in embedded]
    assert [item["chunk_metadata"] for item in both] == [item["chunk_metadata"] for item in plain]


async def test_without_text_the_list_is_empty_and_without_the_file_there_is_none(
    client: AsyncOpenAI, http: httpx.AsyncClient
) -> None:
    store_id, file_id = await attach(client, "\n")
    assert (await client.vector_stores.files.retrieve(file_id, vector_store_id=store_id)).status == "failed"
    for query in ({}, {"include_embeddings": "true", "include_metadata": "true"}):
        assert await content(http, store_id, file_id, **query) == []
    await client.vector_stores.files.delete(file_id, vector_store_id=store_id)
    for ids in ((file_id, store_id), ("file-unknown", store_id), (file_id, "vs_unknown")):
        with pytest.raises(openai.NotFoundError):
            await client.vector_stores.files.content(ids[0], vector_store_id=ids[1])
    with pytest.raises(openai.BadRequestError):
        await client.vector_stores.files.content(file_id, vector_store_id="abc123")
    wrong = await http.get(
        f"/v1/vector_stores/{store_id}/files/{file_id}/content", params={"include_metadata": "perhaps"}
    )
    assert wrong.json()["error"]["param"] == "include_metadata"


@given(
    words=st.lists(st.text("ab é\n", min_size=1, max_size=6).filter(lambda word: bool(word.strip())), max_size=12),
    gaps=st.lists(st.sampled_from(["", " ", "\n\n", "\t "]), min_size=12, max_size=12),
    overlaps=st.lists(st.integers(0, 3), min_size=12, max_size=12),
)
def test_joined_the_items_are_the_document(words: list[str], gaps: list[str], overlaps: list[int]) -> None:
    """Chunks over a text, each of which may begin within those before it, or after white space."""
    text, spans, expected = "", [], ""
    for word, gap, overlap in zip(words, gaps, overlaps, strict=False):
        gap = gap if text else ""
        start = len(text) + len(gap) if gap else max(spans[-1][0] if spans else 0, len(text) - overlap)
        text += gap + word
        expected += ("\n" if gap else "") + word
        spans.append((start, len(text)))
    chunks = [Chunk(i, text[start:end], 1, start, end) for i, (start, end) in enumerate(spans)]
    items = list(running(chunks))
    assert len(items) == len(chunks)
    assert "".join(items) == expected


class Words:
    """A tokenizer to which every word is a token."""

    max_tokens = 10_000
    special_tokens = 0

    def count(self, text: str) -> int:
        return len(self.spans(text))

    def spans(self, text: str) -> Int32:
        return np.array([found.span() for found in re.finditer(r"\S+", text)], np.int32).reshape(-1, 2)


@given(
    sections=st.lists(st.text("abé .,\n", max_size=400).map(Section), min_size=1, max_size=4),
    size=st.integers(2, 40),
    overlap=st.integers(0, 20),
)
def test_what_the_chunker_cuts_with_overlaps_is_told_once(sections: list[Section], size: int, overlap: int) -> None:
    chunks = split(sections, ChunkingStrategy(size, min(overlap, size // 2)), Words())
    told = "".join(running(chunks))
    assert "".join(told.split()) == "".join("".join(section.text for section in sections).split())
    assert told.split() == " ".join(section.text for section in sections).split()
