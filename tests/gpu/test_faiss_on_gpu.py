"""FAISS on a GPU finds what it finds on the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rag.filters import Comparison
from storage.faiss_index import FaissIndex, faiss
from storage.local import LocalStores
from storage.settings import IndexSettings, StorageSettings
from tests.storage.made import MODEL, OWNER, STORE, fill, store_record, units

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not hasattr(faiss, "StandardGpuResources") or faiss.get_num_gpus() < 1, reason="FAISS sees no GPU"
    ),
]


@pytest.mark.parametrize("share", [None, 0.999, 0.5, 0.005])
@pytest.mark.parametrize("limit", [1, 10, 50])
def test_rows_and_scores_equal_those_on_the_cpu(share: float | None, limit: int) -> None:
    rng = np.random.default_rng(3)
    vectors = units(rng, 100_000, 384).astype(np.float16)
    queries = units(rng, 16, 384)
    allowed = None if share is None else rng.random(len(vectors)) < share
    scores, rows = FaissIndex(vectors, gpu=True).search(queries, limit, allowed)
    expected_scores, expected_rows = FaissIndex(vectors).search(queries, limit, allowed)
    np.testing.assert_array_equal(rows, expected_rows)
    np.testing.assert_allclose(scores, expected_scores, atol=1e-5)


def test_a_store_answers_alike_on_both(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    files = [units(rng, 50) for _ in range(40)]
    queries = units(rng, 10)
    found = []
    for device in ("cpu", "cuda"):
        settings = StorageSettings(index=IndexSettings(device=device, tail=100))
        stores = LocalStores(tmp_path / device, settings, threads=1)
        stores.create_store(store_record())
        stores.search(OWNER, STORE, queries[:1], model=MODEL, limit=1)
        for number, vectors in enumerate(files):
            fill(stores, f"file-{number}", vectors, {"even": number % 2 == 0})
        for number in range(0, 40, 7):
            stores.detach(OWNER, STORE, f"file-{number}")
        for where in (None, Comparison("even", "eq", True)):
            for query in queries:
                hits = stores.search(OWNER, STORE, query[None], model=MODEL, limit=10, where=where)
                found.append((device, [hit.chunk_id for hit in hits]))
        stores.close()
    assert [ids for device, ids in found if device == "cpu"] == [ids for device, ids in found if device == "cuda"]
