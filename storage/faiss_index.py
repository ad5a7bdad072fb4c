"""Exact search with FAISS over half floats, on the CPU or, for searches without a selective filter, on a GPU.

A flat index with a selector is exact at every selectivity, and the fewer rows are allowed, the faster it is: there is
no approximate path that a filter could starve.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

import faiss as faiss_module
import numpy as np

from rag.errors import RagError
from rag.types import Float32, Int64
from storage.dense import Float16, Mask, best

SPARE = 16  # fetched beyond the limit, so that equal scores at the cut are seen
GPU_LIMIT = 2048  # the most neighbours that FAISS finds on a GPU
GPU_BATCH = 65_536  # rows copied to the GPU at once

# Constructors are given their Python form when the module is imported, which its annotations do not show.
faiss: Any = faiss_module

logger = logging.getLogger(__name__)


class FaissIndex:
    """A flat inner-product index; the half floats lie once in memory, inside FAISS."""

    def __init__(self, vectors: Float16, *, threads: int = 1, gpu: bool = False) -> None:
        """`vectors` is float16 (n, dimension). With `gpu` a copy is put there; without room for it the CPU answers."""
        count, dimension = vectors.shape
        self._threads = threads
        self._index = faiss.IndexScalarQuantizer(dimension, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT)
        self._vectors = np.empty((0, dimension), np.float16)  # a view into FAISS, which must not outlive the index
        if count:
            self._index.add_sa_codes(np.ascontiguousarray(vectors).view(np.uint8))
            codes = faiss.rev_swig_ptr(self._index.codes.data(), count * dimension * 2)
            self._vectors = codes.view(np.float16).reshape(count, dimension)
        self._gpu = GpuCopy.try_to_make(self._vectors) if gpu and count else None

    def take(self, chosen: Mask) -> Float16:
        return self._vectors[chosen]

    def search(self, queries: Float32, limit: int, allowed: Mask | None = None) -> tuple[Float32, Int64]:
        count = len(self._vectors) if allowed is None else int(np.count_nonzero(allowed))
        wanted = min(limit, count)
        if not wanted:
            return np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64)
        fetch = min(count, wanted + SPARE)
        while True:
            scores, rows = best(*self._nearest(queries, fetch, allowed, count), fetch)
            # FAISS keeps any of the rows that share the last score; ours are those that come first.
            if fetch == count or not np.any(scores[:, wanted - 1] == scores[:, -1]):
                return scores[:, :wanted], rows[:, :wanted]
            fetch = min(count, fetch * 4)

    def _nearest(self, queries: Float32, fetch: int, allowed: Mask | None, count: int) -> tuple[Float32, Int64]:
        if self._gpu is not None:
            hidden = len(self._vectors) - count
            if fetch + hidden <= GPU_LIMIT:
                return self._gpu.search(queries, fetch + hidden, fetch, allowed)
        faiss.omp_set_num_threads(self._threads)
        parameters = None
        if allowed is not None:
            bits = np.packbits(allowed, bitorder="little")
            parameters = faiss.SearchParameters(sel=faiss.IDSelectorBitmap(bits))
        scores, rows = self._index.search(np.ascontiguousarray(queries), fetch, params=parameters)
        return scores, rows


class GpuCopy:
    """A copy of the rows on the first visible GPU. Its candidates are scored again from the half floats."""

    def __init__(self, vectors: Float16) -> None:
        config = faiss.GpuIndexFlatConfig()
        config.useFloat16 = True
        self._vectors = vectors
        self._resources = faiss.StandardGpuResources()
        self._index = faiss.GpuIndexFlatIP(self._resources, vectors.shape[1], config)
        self._turn = threading.Lock()  # FAISS allows one thread at a time on a GPU's resources
        for start in range(0, len(vectors), GPU_BATCH):
            self._index.add(vectors[start : start + GPU_BATCH].astype(np.float32))

    @classmethod
    def try_to_make(cls, vectors: Float16) -> GpuCopy | None:
        """The copy, or None where the GPU has no room for it."""
        try:
            return cls(vectors)
        except RuntimeError as error:
            logger.warning("The index of %d rows stays on the CPU: %s", len(vectors), error)
            return None

    def search(self, queries: Float32, fetch: int, keep: int, allowed: Mask | None) -> tuple[Float32, Int64]:
        """The best `keep` allowed rows among the best `fetch`, which must be enough to hold them."""
        with self._turn:
            _, rows = self._index.search(np.ascontiguousarray(queries), fetch)
        scores = np.einsum("qd,qnd->qn", queries, self._vectors[rows].astype(np.float32))
        if allowed is not None:
            scores = np.where(allowed[rows], scores, -np.inf)
        return best(scores, rows, keep)


def check_gpu() -> None:
    """Raises RagError where FAISS cannot use a GPU in this process."""
    if not hasattr(faiss, "StandardGpuResources") or faiss.get_num_gpus() < 1:
        raise RagError(
            "storage.index.device is 'cuda', but FAISS sees no GPU here. Install the extra 'gpu' and give the store a "
            "GPU, or set the device to 'cpu'."
        )
