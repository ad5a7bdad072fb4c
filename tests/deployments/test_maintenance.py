"""The commands that care for a data directory, as a person uses them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deployments.local import local_service
from deployments.settings import Settings
from rag.errors import ModelMismatch
from rag.search import SearchRequest
from rag.service import NewVectorStore, RagService
from rag.settings import ModelSettings
from rag.types import NewAttachment

pytestmark = [pytest.mark.models]

OWNER = "local"
MINILM = "all-MiniLM-L6-v2"


def florilegium(*arguments: str, model: str | None = None) -> subprocess.CompletedProcess[str]:
    extra = {} if model is None else {"FLORILEGIUM_EMBEDDER__MODEL": model}
    return subprocess.run(
        [str(Path(sys.executable).parent / "florilegium"), *arguments],
        env={**os.environ, **extra, "HF_HUB_OFFLINE": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


async def data(text: str) -> AsyncIterator[bytes]:
    yield text.encode()


async def fill(service: RagService) -> str:
    store = await service.create_store(OWNER, NewVectorStore("harbour"))
    for name, text in (
        ("ferry.txt", "The night ferry to Skarvik leaves at half past ten."),
        ("bread.txt", "Sourdough rises overnight in a cool kitchen."),
    ):
        received = await service.receive_file(name, data(text))
        file = await service.create_file(OWNER, received, purpose="assistants")
        attached = await service.attach(OWNER, store.id, NewAttachment(file.id))
        assert attached.status == "completed"
    return store.id


@pytest.mark.parametrize("command", ["verify", "compact"])
def test_a_folder_without_data_is_refused_and_left_as_it_was(tmp_path: Path, command: str) -> None:
    refused = florilegium(command, "--data-dir", str(tmp_path))
    assert refused.returncode == 1
    assert "--data-dir" in refused.stderr
    assert list(tmp_path.iterdir()) == []


async def test_verify_reembed_and_compact(tmp_path: Path) -> None:
    where = ("--data-dir", str(tmp_path))
    async with local_service(Settings(data_dir=tmp_path, reranker=None)) as service:
        store_id = await fill(service)
        locked = florilegium("verify", *where)
        assert locked.returncode == 1
        assert "Traceback" not in locked.stderr
        assert "process" in locked.stderr

    sound = florilegium("verify", *where)
    assert (sound.returncode, "0 contradictions" in sound.stdout) == (0, True), sound.stdout + sound.stderr

    request = SearchRequest((store_id,), ("When does the boat leave in the evening?",), limit=1)
    other = Settings(data_dir=tmp_path, embedder=ModelSettings(model=MINILM), reranker=None)
    async with local_service(other) as service:
        with pytest.raises(ModelMismatch, match="florilegium reembed"):
            await service.search(OWNER, request)

    assert "0 vector stores" in florilegium("reembed", *where).stdout
    embedded = florilegium("reembed", *where, model=MINILM)
    assert "1 vector stores embedded anew" in embedded.stdout, embedded.stdout + embedded.stderr
    compacted = florilegium("compact", *where)
    assert (compacted.returncode, "MB after" in compacted.stdout) == (0, True), compacted.stderr
    async with local_service(other) as service:
        (hit,) = (await service.search(OWNER, request)).hits
        assert hit.filename == "ferry.txt"

    (next((tmp_path / "blobs").glob("file-*"))).unlink()
    broken = florilegium("verify", *where)
    assert broken.returncode == 1
    assert "has lost its bytes" in broken.stdout
