"""Counts and sizes equal a recount, whatever happens side by side."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rag.errors import NotFound
from rag.types import NewAttachment, PageRequest
from storage.local import LocalStores
from tests.storage.contract import FAILURE
from tests.storage.made import MODEL, OWNER, STORE, file_record, ingested, job, store_record, units

FILES = [f"file-{number}" for number in range(4)]
actions = st.tuples(st.sampled_from(["attach", "finish", "fail", "detach", "delete"]), st.sampled_from(FILES))


def act(stores: LocalStores, action: tuple[str, str]) -> None:
    name, file_id = action
    try:
        if name == "attach":
            stores.attach(OWNER, STORE, NewAttachment(file_id))
        elif name == "finish":
            stores.keep(job(file_id), ingested(units(np.random.default_rng(len(file_id)), 3)))
        elif name == "fail":
            stores.fail(job(file_id), FAILURE)
        elif name == "detach":
            stores.detach(OWNER, STORE, file_id)
        else:
            stores.delete_file(OWNER, file_id)
    except NotFound:
        return  # another thread was first, or nobody has attached it


@given(script=st.lists(actions, min_size=10, max_size=40))
@settings(max_examples=12)
def test_counts_equal_a_recount_after_any_parallel_history(script: list[tuple[str, str]]) -> None:
    with TemporaryDirectory() as folder:
        stores = LocalStores(Path(folder), threads=1)
        stores.create_store(store_record())
        for file_id in FILES:
            stores.create_file(file_record(file_id))
        stores.search(OWNER, STORE, units(np.random.default_rng(0), 1), model=MODEL, limit=1)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda action: act(stores, action), script))
        record = stores.get_store(OWNER, STORE)
        attachments = stores.list_attachments(OWNER, STORE, PageRequest(limit=100)).items
        counted = Counter(attachment.status.value for attachment in attachments)
        counts = record.file_counts
        assert counted == Counter(
            in_progress=counts.in_progress, completed=counts.completed, failed=counts.failed, cancelled=0
        )
        hits = stores.search(OWNER, STORE, units(np.random.default_rng(0), 1), model=MODEL, limit=100)
        sizes = Counter[str]()
        for hit in hits:
            sizes[hit.file_id] += len(hit.chunk.text.encode())
        assert {item.file_id: item.usage_bytes for item in attachments if item.usage_bytes} == dict(sizes)
        assert record.usage_bytes == sizes.total()
        assert stores.stats()["chunks"] == len(hits) == 3 * counts.completed
        stores.close()
