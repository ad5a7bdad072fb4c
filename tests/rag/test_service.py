"""The service over doubles: what is decided there and not on the wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rag.errors import InvalidRequest, ModelFailed, NotFound, StoreUnavailable, TooLarge
from rag.search import SearchRequest
from rag.service import NewVectorStore, RagService, ServiceOptions
from rag.types import FileStatus, NewAttachment, PageRequest
from tests.doubles import FolderBlobs, HashEmbedder, MemoryStores, OverlapReranker, ParagraphIngestor


class Parts:
    """A service and the doubles behind it."""

    def __init__(self, folder: Path, *, reranker: bool = True, **options: object) -> None:
        self.folder = folder
        self.embedder = HashEmbedder()
        self.reranker = OverlapReranker()
        blobs = FolderBlobs(folder)
        self.stores = MemoryStores(ParagraphIngestor(blobs, self.embedder))
        self.service = RagService(
            self.embedder, self.reranker if reranker else None, self.stores, blobs, ServiceOptions(**options)
        )

    async def upload(self, owner: str = "alice", text: bytes = b"night ferry", name: str = "a.txt") -> str:
        received = await self.service.receive_file(name, stream(text))
        return (await self.service.create_file(owner, received, purpose="assistants")).id


async def stream(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    return Parts(tmp_path)


# --- uploads --------------------------------------------------------------------------------------------------------


async def test_an_upload_becomes_a_file_with_its_content(parts: Parts) -> None:
    file_id = await parts.upload(text=b"night ferry")
    record, path = await parts.service.file_content("alice", file_id)
    assert record.bytes == len(b"night ferry")
    assert path.read_bytes() == b"night ferry"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("empty.txt", b""),
        ("x.pdf", b"hello"),
        ("x.PDF", b" " * 2000 + b"%PDF-1.7"),
        ("bell\x07.txt", b"x"),
        ("", b"x"),
        ("n" * 513, b"x"),
    ],
)
async def test_a_bad_upload_is_refused_and_nothing_is_kept(parts: Parts, name: str, content: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await parts.service.receive_file(name, stream(content))
    assert caught.value.param == "file"
    assert list(parts.folder.iterdir()) == []


async def test_a_pdf_may_begin_after_some_bytes_and_arrive_in_pieces(parts: Parts) -> None:
    await parts.service.receive_file("x.pdf", stream(b"\xef\xbb\xbf%P", b"DF-1.7 rest"))
    await parts.service.receive_file("y.pdf", stream(b"%PDF-1.4" + b"z" * 5000))


async def test_an_upload_over_the_limit_is_refused_and_nothing_is_kept(tmp_path: Path) -> None:
    parts = Parts(tmp_path, max_upload_bytes=10)
    with pytest.raises(TooLarge, match="10"):
        await parts.service.receive_file("a.txt", stream(b"123456", b"7890123"))
    assert list(parts.folder.iterdir()) == []


async def test_a_discarded_upload_leaves_no_bytes(parts: Parts) -> None:
    await parts.service.discard_file(await parts.service.receive_file("a.txt", stream(b"x")))
    assert list(parts.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("purpose", "asked", "lifetime"),
    [
        ("assistants", None, None),
        ("batch", None, 30 * 86_400),
        ("batch", 3600, 3600),
        ("user_data", 2_592_000, 2_592_000),
    ],
)
async def test_a_file_expires_as_asked_and_batches_after_thirty_days(
    parts: Parts, purpose: str, asked: int | None, lifetime: int | None
) -> None:
    received = await parts.service.receive_file("a.txt", stream(b"x"))
    record = await parts.service.create_file("alice", received, purpose=purpose, expires_after_s=asked)
    assert record.expires_at == (None if lifetime is None else record.created_at + lifetime)


@pytest.mark.parametrize(
    ("purpose", "asked", "param"),
    [
        (None, None, "purpose"),
        ("", None, "purpose"),
        ("homework", None, "purpose"),
        ("assistants_output", None, "purpose"),
        ("assistants", 3599, "expires_after.seconds"),
        ("assistants", 2_592_001, "expires_after.seconds"),
    ],
)
async def test_a_bad_purpose_or_expiry_is_refused(
    parts: Parts, purpose: str | None, asked: int | None, param: str
) -> None:
    received = await parts.service.receive_file("a.txt", stream(b"x"))
    with pytest.raises(InvalidRequest) as caught:
        await parts.service.create_file("alice", received, purpose=purpose, expires_after_s=asked)
    assert caught.value.param == param
    assert list(parts.folder.iterdir()) == []


async def test_a_deleted_file_is_gone_with_its_bytes_and_out_of_every_store(parts: Parts) -> None:
    file_id = await parts.upload()
    stores = [
        await parts.service.create_store("alice", NewVectorStore(files=(NewAttachment(file_id),))) for _ in range(2)
    ]
    await parts.service.delete_file("alice", file_id)
    assert list(parts.folder.iterdir()) == []
    for store in stores:
        assert (await parts.service.get_store("alice", store.id)).file_counts.total == 0
        request = SearchRequest((store.id,), ("night ferry",))
        assert (await parts.service.search("alice", request)).hits == ()
    with pytest.raises(NotFound):
        await parts.service.delete_file("alice", file_id)


# --- stores ---------------------------------------------------------------------------------------------------------


async def test_a_store_is_stamped_with_the_served_model(parts: Parts) -> None:
    record = await parts.service.create_store("alice", NewVectorStore(name="n"))
    assert record.model == parts.embedder.model


async def test_an_unknown_file_in_a_creation_is_listed_as_failed(parts: Parts) -> None:
    file_id = await parts.upload()
    new = NewVectorStore(files=(NewAttachment(file_id), NewAttachment("file-none"), NewAttachment(file_id)))
    record = await parts.service.create_store("alice", new)
    assert (record.file_counts.completed, record.file_counts.failed, record.file_counts.total) == (1, 1, 2)
    failed = await parts.service.list_attachments("alice", record.id, PageRequest(), status=FileStatus.FAILED)
    assert [attachment.file_id for attachment in failed.items] == ["file-none"]


async def test_a_creation_takes_at_most_five_hundred_files(parts: Parts) -> None:
    new = NewVectorStore(files=tuple(NewAttachment(f"file-{i}") for i in range(501)))
    with pytest.raises(InvalidRequest, match="500"):
        await parts.service.create_store("alice", new)


async def test_attaching_waits_no_longer_than_it_should(tmp_path: Path) -> None:
    parts = Parts(tmp_path, ingest_wait_s=0.0)
    parts.stores.hold = asyncio.Event()
    file_id = await parts.upload()
    store = await parts.service.create_store("alice", NewVectorStore())
    assert (await parts.service.attach("alice", store.id, NewAttachment(file_id))).status == FileStatus.IN_PROGRESS
    parts.stores.hold.set()


async def test_an_id_of_the_wrong_form_is_no_unknown_id(parts: Parts) -> None:
    with pytest.raises(InvalidRequest, match="begins with 'vs'"):
        await parts.service.get_store("alice", "abc123")
    with pytest.raises(InvalidRequest, match="letters, numbers"):
        await parts.service.search("alice", SearchRequest(("vs_a b",), ("x",)))
    with pytest.raises(NotFound):
        await parts.service.get_store("alice", "vs_unknown")


# --- models ---------------------------------------------------------------------------------------------------------


async def test_models_are_found_by_id_and_alias(tmp_path: Path) -> None:
    inference = Parts(tmp_path, embedder_aliases=("org/hash",), reranker_aliases=("org/overlap",)).service.inference
    assert [model.info.id for model in await inference.models()] == ["hash-embedder", "overlap-reranker"]
    assert (await inference.model("org/overlap")).task == "rerank"
    assert len(await inference.embed("org/hash", ["a"])) == 1
    assert (await inference.rerank("org/overlap", "a", ["a"])).model == "overlap-reranker"
    for attempt in (
        inference.model("bge-m9"),
        inference.embed("bge-m9", ["a"]),
        inference.rerank("bge-m9", "a", ["a"]),
    ):
        with pytest.raises(NotFound, match="bge-m9") as caught:
            await attempt
        assert caught.value.code == "model_not_found"


async def test_without_a_reranker_reranking_is_not_found(tmp_path: Path) -> None:
    inference = Parts(tmp_path, reranker=False).service.inference
    assert len(await inference.models()) == 1
    with pytest.raises(NotFound, match="No reranking model"):
        await inference.rerank(None, "a", ["a"])


async def test_token_ids_are_refused_with_the_remedy_where_nothing_decodes_them(parts: Parts) -> None:
    with pytest.raises(InvalidRequest, match="check_embedding_ctx_length=False") as caught:
        await parts.service.inference.embed("hash-embedder", [[1, 2]])
    assert caught.value.param == "input"


async def test_a_ranking_is_stable_and_cut(parts: Parts) -> None:
    ranking = await parts.service.inference.rerank(None, "a b", ["b", "a b", "a", "c", "a b"], top_n=4)
    assert ranking.results == ((1, 1.0), (4, 1.0), (0, 0.5), (2, 0.5))


# --- readiness ------------------------------------------------------------------------------------------------------


async def test_ready_means_that_texts_were_embedded_and_reranked(parts: Parts) -> None:
    await parts.service.check_ready()
    assert len(parts.embedder.calls) == len(parts.reranker.calls) == 1


@pytest.mark.parametrize("part", ["embedder", "reranker", "stores"])
async def test_a_part_that_fails_makes_it_unready_with_the_reason(parts: Parts, part: str) -> None:
    getattr(parts, part).fails = ModelFailed("the reason")
    with pytest.raises(StoreUnavailable, match="the reason"):
        await parts.service.check_ready()
    getattr(parts, part).fails = None
    await parts.service.check_ready()


async def test_a_part_that_hangs_makes_it_unready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts(tmp_path, ready_timeout_s=0.01)

    async def hang(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(parts.embedder, "embed", hang)
    with pytest.raises(StoreUnavailable, match=r"0\.01 s"):
        await parts.service.check_ready()
